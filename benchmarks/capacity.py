"""How many requests a second does this host serve, and what is the load generator's own limit?

    python -m benchmarks.capacity --workload word-lm

Prepares, trains, quantizes and evaluates what the store does not hold yet, and compares int8 candidates of a workload
with float in both scenarios. The table "generator" sends requests to a model that does nothing, at growing rates.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import median

import numpy as np
import torch

from storage.artifacts import ArtifactStore
from storage.locks import host_lock
from tasks.environment.machine import affinity, this_machine
from tasks.measure.benchmark.capacity import measure_capacity
from tasks.measure.benchmark.capacity_child import generator_limit, running_fleet
from tasks.measure.benchmark.messages import PROFILES, Subject
from tasks.measure.benchmark.protocol import LOCK, Session
from tasks.measure.benchmark.rounds import Loaded
from tasks.measure.benchmark.stage import BenchmarkCandidate
from tasks.run.stages import build, evaluate, obtain, prepare
from tasks.values.job import Workspace
from tasks.workload import read_workload
from tasks.workload.recipe import CandidateName
from tasks.workload.workload import Capacity

_WORKLOADS = Path(__file__).parent.parent / "flows" / "workloads"


def load_nothing(subject: Subject) -> Loaded:
    """Load a model that does nothing."""
    output = torch.zeros(1)
    return Loaded(lambda: output)


def show_generator(bound_s: float = 0.01) -> None:
    """Print how late and how busy the generator is at growing rates, with one worker per processor."""
    print("\n| rate | late, median | late, p99 | busy | limit |\n|---|---|---|---|---|")
    loader = "benchmarks.capacity:load_nothing"
    with (
        host_lock(LOCK),
        running_fleet(Subject(name=CandidateName("nothing", "none")), len(affinity()), 1, loader) as fleet,
    ):
        for rate in (1_000, 10_000, 50_000, 200_000):
            served = fleet.serve(np.random.default_rng(1).exponential(1 / rate, rate))
            late = " | ".join(f"{1e3 * float(np.quantile(served.lag_s, share)):.3g} ms" for share in (0.5, 0.99))
            limit = generator_limit(served.lag_s, served.busy, bound_s) or "–"
            print(f"| {rate:,} | {late} | {served.busy:.0%} | {limit} |", flush=True)


def show_candidates(name: str, workspace: Workspace, budget_s: float, bound_calls: float) -> None:
    """Print the capacity of a workload's first int8 recipe in each runtime that can be deployed."""
    workload = read_workload(_WORKLOADS / f"{name}.toml")
    job = obtain(workspace, workload, prepare(workspace, workload))
    first = next(recipe for recipe in workload.recipe if recipe.method not in ("none", "cast"))
    names = [CandidateName(first.name, runtime) for runtime in first.runtimes if runtime != "eager"]
    subjects = []
    for candidate in [workload.baseline_name, *names]:
        recipe = workload.recipe_named(candidate.recipe)
        built = build(workspace, job, recipe, candidate.runtime)
        outputs = evaluate(workspace, job, built).outputs
        subjects.append(BenchmarkCandidate(candidate=built, outputs=outputs).subject(workspace))
    session = Session(workload.baseline_name, PROFILES["standard"])
    with host_lock(LOCK):
        measured = Session(session.baseline, PROFILES["quick"]).measure(subjects[:1])
    bound_ms = float(np.ceil(bound_calls * 1e3 * median(measured.round_s(str(session.baseline)).ravel())))
    for bound in (None, bound_ms):
        settings = Capacity(latency_bound_ms=bound, budget_s=budget_s)
        benchmark = workload.benchmark.model_copy(update={"capacity": settings})
        with host_lock(LOCK):
            changed = workload.model_copy(update={"benchmark": benchmark})
            served, unknown = measure_capacity(session, subjects, [*map(str, names)], changed)
        print(f"\n{name}, {settings.scenario}" + (f", bound {bound:g} ms" if bound else ""))
        print("| candidate | requests/s | ratio (95% interval) | p50 | p99 | limit |")
        print("|---|---|---|---|---|---|")
        for candidate, item in served.items():
            ratio = f"{item.capacity_ratio:.3f} ({item.capacity_ratio_low:.3f} to {item.capacity_ratio_high:.3f})"
            times = [item.capacity_p50_s, item.capacity_p99_s]
            cells = " | ".join("–" if value is None else f"{1e3 * value:.3g} ms" for value in times)
            print(f"| {candidate} | {item.capacity_rps:.4g} | {ratio} | {cells} | {item.capacity_limit or '–'} |")
        for candidate, reasons in unknown.items():
            print(f"{candidate}: {reasons['capacity_rps']}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", default=[], help="a built-in workload; repeatable")
    parser.add_argument("--store", type=Path, default=Path("nightquant-store"))
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of each measurement")
    parser.add_argument("--bound-calls", type=float, default=100, help="latency bound, in single calls")
    arguments = parser.parse_args()
    print(f"{this_machine().cpu}, {len(affinity())} processors, load {os.getloadavg()[0]:.1f}", flush=True)
    show_generator()
    for name in arguments.workload:
        show_candidates(name, Workspace(ArtifactStore(arguments.store)), arguments.budget, arguments.bound_calls)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
