"""How far a night scales: 24 candidates on one and on two workers, measured; 1,000 candidates on 50 hosts, simulated.

Usage: ``python -m benchmarks.scale [--write docs/measured-scale.md]``. The workloads are generated; the stages and
Prefect are the real ones. ``--write`` replaces the text between the document's markers.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from benchmarks import overhead
from benchmarks.scale_model import Costs, Outcome, Setting, simulate
from flows.execution.server import prefect_api
from flows.reporter import Reporter
from flows.settings import Settings
from storage.root import StoreRoot
from tasks.workload import Workload, find_workloads

BUILT_IN = Path(__file__).parent.parent / "flows" / "workloads"
WORKLOADS = 6  # of 2 recipes × 2 runtimes: 24 candidates
DIMENSION, LAYERS, LENGTH, BATCH = 256, 2, 100, 16
SETTINGS = (
    Setting("1 host", 1, 1),
    Setting("10 hosts", 10, 10),
    Setting("50 hosts", 50, 50),
    Setting("50 hosts, of which 5 have the required fingerprint", 50, 5),
    Setting("50 hosts, with benchmarks during other stages", 50, 50, barrier=False),
    Setting("200 hosts", 200, 200),
)


@dataclass
class Stages(Reporter):
    """Keeps how long each stage took, in seconds."""

    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)

    def finished(self, label: str, seconds: float, error: str = "") -> None:
        """Keep it."""
        self.times[label.rpartition(": ")[2]].append(seconds)
        if error:
            self.errors.append(f"{label}: {error}")


@dataclass(frozen=True)
class Fanned:
    """What a number of workers took for quantizing and evaluating all candidates, in seconds."""

    workers: int
    wall_s: float
    stages: dict[str, list[float]]

    @property
    def busy_s(self) -> float:
        """All stages added up."""
        return sum(map(sum, self.stages.values()))


def generated() -> list[Workload]:
    """Workloads of one shape and different seeds, so that none finds another's artifacts."""
    (demo,) = find_workloads(["lstm-demo"], BUILT_IN)
    base = demo.model_dump(mode="json")
    return [
        Workload.model_validate(
            base
            | {"name": f"generated-{seed}"}
            | {"data": base["data"] | {"seed": seed, "length": LENGTH, "batch_size": BATCH}}
            | {"model": base["model"] | {"dimension": DIMENSION, "layers": LAYERS}}
            | {"checkpoint": base["checkpoint"] | {"seed": seed}}
            | {"benchmark": base["benchmark"] | {"batch_size": BATCH, "sequence_length": LENGTH}}
        )
        for seed in range(1, WORKLOADS + 1)
    ]


def fan_out(count: int, store: str) -> Fanned:
    """Build and evaluate all candidates with `count` workers of one thread each; data and weights exist before."""
    from prefect import flow
    from prefect.task_runners import ThreadPoolTaskRunner

    from flows import steps
    from flows.execution.context import executing
    from flows.fan_out import gather, later, submit

    reporter, workloads = Stages(), generated()

    @flow(persist_result=False, task_runner=ThreadPoolTaskRunner(max_workers=64))
    def night() -> float:
        with (
            patch("flows.execution.context.available_cores", lambda: count),  # one thread each
            executing(Settings(workers=count, stage_timeout_s=3600.0), reporter),
        ):
            datasets = [(workload, steps.prepare.submit(workload, store)) for workload in workloads]
            for job in [steps.obtain.submit(workload, later(dataset), store) for workload, dataset in datasets]:
                job.result()
            reporter.times.clear()
            began = time.perf_counter()
            for futures in [submit(workload, store) for workload in workloads]:
                gather(futures)
            return time.perf_counter() - began

    wall_s = night()
    if reporter.errors:
        raise SystemExit("\n".join(reporter.errors))
    return Fanned(count, wall_s, dict(reporter.times))


def benchmark_s(folder: str) -> float:
    """Seconds of one attempt of the benchmark of ``lstm-demo`` (4 candidates, quick profile), without its waiting."""
    from benchmarks.repeatability import candidates_of
    from storage.artifacts import ArtifactStore
    from tasks.benchmark.messages import PROFILES
    from tasks.benchmark.stage import benchmark
    from tasks.job import Workspace
    from tasks.stages import obtain, prepare

    (workload,) = find_workloads(["lstm-demo"], BUILT_IN)
    workspace = Workspace(ArtifactStore(folder))
    job = obtain(workspace, workload, prepare(workspace, workload))
    return benchmark(job, candidates_of(job, workspace), PROFILES["quick"], workspace).wall_s


def store_write_s(store: str) -> float:
    """Median seconds of a write of 1 MB."""
    root, content, times = StoreRoot.of(store), bytes(1_000_000), []
    for number in range(20):
        began = time.perf_counter()
        root.put_new(f"writes/{number}", content)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measured_text(runs: list[Fanned], load: float) -> list[str]:
    """The measurement as a Markdown table."""
    first = runs[0]
    lines = [
        f"The {4 * WORKLOADS} candidates come from {WORKLOADS} generated workloads, each with 2 recipes and 2 "
        f"runtimes. The model is an LSTM with {LAYERS} layers of width {DIMENSION}, called with {LENGTH} steps and "
        f"a batch size of {BATCH}. Each worker has one thread. The host has {os.cpu_count()} processors ({_cpu()}). "
        f"Before the run, the load average of the host was {load:.1f}.",
        "",
        "| workers | wall time | sum of stages | speed-up | efficiency |",
        "| --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        gain = first.wall_s / run.wall_s
        share = f"{100 * gain / run.workers:.0f}%"
        lines.append(f"| {run.workers} | {run.wall_s:.1f} s | {run.busy_s:.1f} s | {gain:.2f}× | {share} |")
    return lines


def costs_text(costs: Costs) -> list[str]:
    """What goes into the simulation, as Markdown."""
    lines = ["| cost | median |", "| --- | --- |"]
    lines += [f"| `{name}` stage | {1000 * statistics.median(times):.0f} ms |" for name, times in costs.stages.items()]
    return [
        *lines,
        f"| CPU time per task run in the flow's process | {1000 * costs.client_s:.1f} ms |",
        f"| CPU time per task run in Prefect's server | {1000 * costs.server_s:.1f} ms |",
        f"| time to write and sync 1 MB in the store | {1000 * costs.store_s:.1f} ms |",
    ]


def simulated_text(outcomes: list[Outcome]) -> list[str]:
    """The simulation as a Markdown table."""
    names = list(outcomes[0].busy)
    lines = [
        f"| hosts | evaluation ends after | run ends after | busy: {' | '.join(names)} | busiest |",
        "| --- | --- | --- |" + " --- |" * (len(names) + 1),
    ]
    for outcome in outcomes:
        busy = " | ".join(f"{100 * outcome.busy[name]:.0f}%" for name in names)
        times = f"{outcome.evaluated_s:.0f} s | {outcome.end_s:.0f} s"
        lines.append(f"| {outcome.setting.name} | {times} | {busy} | {outcome.bottleneck} |")
    return lines


def _cpu() -> str:
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return found[1] if found else platform.processor()


def main() -> None:
    """Measure, simulate, print; write the document where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", type=Path, help="the document to bring up to date")
    parser.add_argument("--client-ms", type=float, help="take this from `python -m benchmarks.overhead`: no measuring")
    parser.add_argument("--server-ms", type=float, help="likewise")
    parser.add_argument("--benchmark-s", type=float, help="take this for a workload's benchmark: no measuring")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with prefect_api(90), tempfile.TemporaryDirectory() as folder:
        if arguments.client_ms is None or arguments.server_ms is None:
            cost = overhead.measure(100)
            client_s, server_s = cost.client_cpu_s, cost.server_cpu_s
        else:
            client_s, server_s = arguments.client_ms / 1000, arguments.server_ms / 1000
        runs = [fan_out(count, f"{folder}/{count}") for count in (1, 2)]
        written = store_write_s(folder)
        timed = arguments.benchmark_s or benchmark_s(f"{folder}/timed")
    costs = Costs(runs[0].stages | {"benchmark": [timed]}, client_s, server_s, written)
    parts = {
        "measured": measured_text(runs, load),
        "costs": costs_text(costs),
        "simulated": simulated_text([simulate(setting, costs) for setting in SETTINGS]),
    }
    for lines in parts.values():
        print("\n".join([*lines, ""]))
    if arguments.write:
        text = arguments.write.read_text(encoding="utf-8")
        for name, lines in parts.items():
            pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
            body = "\n".join([*lines, ""])
            text = re.sub(pattern, lambda found, body=body: f"{found[1]}{body}{found[2]}", text, flags=re.DOTALL)
        arguments.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
