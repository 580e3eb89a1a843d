"""How many requests a second does this host serve, how well do repeats agree, and what is the generator's own limit?

    python -m benchmarks.capacity --workload word-lm --repeats 10

Prepares, trains, quantizes and evaluates what the store does not hold yet. The table "generator" sends requests to a
model that does nothing, at growing rates, until the generator is late or busy. "candidates" compares int8 candidates of
each workload with float. "planted" has a copy of the baseline that takes 10% longer in one of its processes, and a copy
that does not. "repeats" repeats the measurement of the first candidate.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from storage.artifacts import ArtifactStore
from storage.locks import host_lock
from tasks.benchmark.capacity import Capacities, measure_capacity
from tasks.benchmark.capacity_fleet import running_fleet
from tasks.benchmark.capacity_messages import Split
from tasks.benchmark.capacity_server import generator_limit, offer
from tasks.benchmark.launch import load_candidate
from tasks.benchmark.messages import PROFILES, Subject
from tasks.benchmark.protocol import LOCK, Session
from tasks.benchmark.rounds import Loaded
from tasks.benchmark.stage import BenchmarkCandidate
from tasks.job import Job, Workspace
from tasks.machine import affinity, this_machine
from tasks.stages import build, evaluate, obtain, prepare
from tasks.workload import Workload, read_workload
from tasks.workload.capacity import Capacity

_WORKLOADS = Path(__file__).parent.parent / "flows" / "workloads"
# A latency bound of this many single calls, rounded up to milliseconds, leaves room for a queue.
BOUND_CALLS = 10
SLOW, SAME = "slow/planted", "same/planted"
EXTRA = 0.1
FIRST = min(affinity())  # this module is imported before the workers are pinned


def load_planted(subject: Subject) -> Loaded:
    """Open a candidate; if it is `SLOW`, a call takes 10% longer in the worker that has the first processor."""
    loaded = load_candidate(subject)
    if subject.name != SLOW or min(affinity()) != FIRST:
        return loaded
    return Loaded(partial(_slowed, loaded), loaded.golden, loaded.scope)


def _slowed(loaded: Loaded) -> object:
    # Processor time, because on a busy host a call waits for a processor, and a tenth of the waiting is no work.
    began = time.thread_time()
    result = loaded.call()
    end = time.thread_time() + EXTRA * (time.thread_time() - began)
    while time.thread_time() < end:
        pass
    return result


def load_nothing(subject: Subject) -> Loaded:
    """Load a model that does nothing."""
    output = torch.zeros(1)
    return Loaded(lambda: output)


def show(title: str, capacities: Capacities, baseline: str, wall_s: float) -> None:
    """Print one line for each subject."""
    print(f"\n{title}, {wall_s:.0f} s")
    print("| candidate | requests/s | ratio (95% interval) | p50 | p99 | p99.9 | split | limit |")
    print("|---|---|---|---|---|---|---|---|")
    for name, item in capacities.served.items():
        ratio, low, high = item.capacity_ratio, item.capacity_ratio_low, item.capacity_ratio_high
        interval = "1" if name == baseline else f"{ratio:.3f} ({low:.3f} to {high:.3f})" if ratio else "–"
        times = [item.capacity_p50_s, item.capacity_p99_s, item.capacity_p999_s]
        cells = " | ".join("–" if value is None else f"{1e3 * value:.3g} ms" for value in times)
        limit = item.capacity_limit or "–"
        print(f"| {name} | {item.capacity_rps:.4g} | {interval} | {cells} | {item.capacity_split} | {limit} |")
    for name, reasons in capacities.unknown.items():
        if name not in capacities.served:
            print(f"{name}: {reasons['capacity_rps']}")
    print(end="", flush=True)


def int8_of(workload: Workload) -> list[str]:
    """The candidates of a workload's first two quantized recipes that can be deployed."""
    recipes = [recipe for recipe in workload.recipe if recipe.method not in ("none", "cast")][:2]
    return [f"{recipe.name}/{runtime}" for recipe in recipes for runtime in recipe.runtimes if runtime != "eager"]


class Measurer:
    """Measures capacities of one workload's subjects, baseline first."""

    def __init__(self, name: str, workspace: Workspace, keep: Iterable[str], bound_calls: float) -> None:
        workload = read_workload(_WORKLOADS / f"{name}.toml")
        self.job = obtain(workspace, workload, prepare(workspace, workload))
        self.workspace, self.baseline = workspace, workload.baseline_name
        names = [each for each in keep if each in workload.candidates()] or int8_of(workload)
        self.subjects = [self._built(each) for each in dict.fromkeys([self.baseline, *names])]
        with host_lock(LOCK):
            measured = Session(self.baseline, PROFILES["quick"]).measure(self.subjects[:1])
        self.bound_ms = float(np.ceil(bound_calls * 1e3 * median(measured.round_s(self.baseline).ravel())))

    def measure(self, scenario: str, subjects: list[Subject], budget_s: float, loader: str = "") -> Capacities:
        """Measure `subjects`, baseline first."""
        bound = {"latency_bound_ms": self.bound_ms} if scenario == "server" else {}
        capacity = Capacity.model_validate({"scenario": scenario, "budget_s": budget_s, **bound})
        session = Session(self.baseline, PROFILES["standard"], **({"loader": loader} if loader else {}))
        names = [subject.name for subject in subjects]
        with host_lock(LOCK):
            return measure_capacity(session, subjects, names, self._with(capacity), self.workspace.store)

    def _built(self, candidate: str) -> Subject:
        recipe, _, runtime = candidate.partition("/")
        built = build(self.workspace, self.job, self.job.workload.recipe_named(recipe), runtime)
        outputs = evaluate(self.workspace, self.job, built).outputs
        return BenchmarkCandidate(candidate=built, outputs=outputs).subject(self.workspace)

    def _with(self, capacity: Capacity) -> Job[Workload]:
        benchmark = self.job.workload.benchmark.model_copy(update={"capacity": capacity})
        workload = self.job.workload.model_copy(update={"benchmark": benchmark})
        return Job(workload, self.job.dataset, self.job.checkpoint)


def show_candidates(measurer: Measurer, name: str, scenario: str, budget_s: float) -> None:
    """Print all candidates of a workload in one scenario."""
    began = time.monotonic()
    capacities = measurer.measure(scenario, measurer.subjects, budget_s)
    bound = f", bound {measurer.bound_ms:g} ms" if scenario == "server" else ""
    show(f"{name}, {scenario}{bound}", capacities, measurer.baseline, time.monotonic() - began)


def show_repeats(measurer: Measurer, name: str, scenario: str, budget_s: float, repeats: int) -> None:
    """Print how well repeats of one candidate's measurement agree."""
    subjects = measurer.subjects[:2]
    ratios, rps, wall_s, limits = [], [], [], 0
    print(f"\n{name}, {scenario}: repeats of {subjects[1].name}", flush=True)
    for _ in range(repeats):
        began = time.monotonic()
        item = measurer.measure(scenario, subjects, budget_s).served[subjects[1].name]
        ratios.append(item.capacity_ratio)
        rps.append(item.capacity_rps)
        limits += bool(item.capacity_limit)
        wall_s.append(time.monotonic() - began)
        low, high = item.capacity_ratio_low, item.capacity_ratio_high
        load = os.getloadavg()[0]
        print(
            f"{item.capacity_ratio:.3f} ({low:.3f} to {high:.3f}), {item.capacity_rps:.4g}/s, load {load:.1f}",
            flush=True,
        )
    print(f"{len(ratios)} repeats, {median(wall_s):.0f} s each")
    for what, values in (("ratio", ratios), ("requests/s", rps)):
        middle = median(values)
        low, high = min(values) / middle - 1, max(values) / middle - 1
        print(f"{what}: median {middle:.4g}, from {low:+.1%} to {high:+.1%}")
    print(f"limited by the generator: {limits} of {repeats}", flush=True)


def show_planted(measurer: Measurer, name: str, scenario: str, budget_s: float) -> None:
    """Print the capacity of a copy that is slower in one of its processes, and of a copy that is not."""
    baseline = measurer.subjects[0]
    subjects = [baseline, *(baseline.model_copy(update={"name": each}) for each in (SLOW, SAME))]
    began = time.monotonic()
    capacities = measurer.measure(scenario, subjects, budget_s, "benchmarks.capacity:load_planted")
    title = f"{name}, {scenario}: a copy that is 10% slower in one process, and an equal copy"
    show(title, capacities, measurer.baseline, time.monotonic() - began)


def show_generator(bound_s: float, seconds: float) -> None:
    """Print how late and how busy the generator is at growing rates, with one worker per processor."""
    processors = affinity()
    split = Split(processes=len(processors), threads=1, batch_size=1)
    print(f"\ngenerator, {split}, a model that does nothing, latency bound {bound_s * 1e3:g} ms")
    print("| rate | late, median | late, p99 | busy | latency, p99 | limit |\n|---|---|---|---|---|---|")
    subject = Subject(name="nothing")
    with host_lock(LOCK), running_fleet(subject, split, "benchmarks.capacity:load_nothing", processors) as fleet:
        for rate in (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000):
            count = min(fleet.most_requests, int(rate * seconds))
            probe = offer(fleet, np.random.default_rng(1).exponential(size=count), rate)
            late = " | ".join(f"{1e3 * float(np.quantile(probe.lag_s, share)):.3g} ms" for share in (0.5, 0.99))
            latency_s = float(np.quantile(probe.latency_s, 0.99))
            limit = generator_limit(probe.lag_s, probe.busy, bound_s) or "–"
            print(f"| {rate:,} | {late} | {probe.busy:.0%} | {1e3 * latency_s:.3g} ms | {limit} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", help="a built-in workload; repeatable")
    parser.add_argument("--candidate", action="append", help="a candidate to compare with the baseline; repeatable")
    parser.add_argument("--scenario", action="append", choices=["offline", "server"])
    parser.add_argument("--table", action="append", choices=["candidates", "repeats", "planted", "generator"])
    parser.add_argument("--store", type=Path, default=Path("nightquant-store"))
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of each measurement")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--bound-calls", type=float, default=BOUND_CALLS, help="latency bound, in single calls")
    arguments = parser.parse_args()
    workspace = Workspace(ArtifactStore(arguments.store))
    print(f"{this_machine().cpu}, {len(affinity())} processors, load {os.getloadavg()[0]:.1f}", flush=True)
    tables = arguments.table or ["generator", "candidates", "planted", "repeats"]
    workloads = (arguments.workload or ["word-lm", "resnet18"]) if set(tables) - {"generator"} else []
    if "generator" in tables:
        show_generator(0.01, 1.0)
    for name in workloads:
        measurer = Measurer(name, workspace, arguments.candidate or (), arguments.bound_calls)
        for scenario in arguments.scenario or ["offline", "server"]:
            if "candidates" in tables:
                show_candidates(measurer, name, scenario, arguments.budget)
            if "planted" in tables:
                show_planted(measurer, name, scenario, arguments.budget)
            if "repeats" in tables:
                show_repeats(measurer, name, scenario, arguments.budget, arguments.repeats)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
