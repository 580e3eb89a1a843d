"""How large a buffer empties the caches, and how many cold calls a launch needs: the two choices behind cold latencies.

    python -m benchmarks.cold_calls --workload word-lm

Prepares, trains, quantizes and evaluates what the store does not hold yet. The first table is the median time of a call
after buffers of growing size were walked, and what the walk took. The second is the standard deviation from launch to
launch of a candidate's log ratio to baseline and copy (root mean square over candidates), by the cold rounds of a
launch that are used, and the share of a launch that such calls took.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from statistics import median

import torch

from benchmarks.repeatability import candidates_of
from storage.artifacts import ArtifactStore
from storage.locks import host_lock
from tasks.benchmark.launch import load_candidate
from tasks.benchmark.messages import COPY_SUFFIX, PROFILES, Subject
from tasks.benchmark.processors import Eviction, choose_processors
from tasks.benchmark.protocol import LOCK, Measured, Session
from tasks.benchmark.rounds import Loaded, no_garbage_collection, time_cold_call
from tasks.benchmark.statistics import Sample
from tasks.job import Workspace
from tasks.machine import affinity, this_machine
from tasks.stages import obtain, prepare
from tasks.workload import read_workload

_WORKLOADS = Path(__file__).parent.parent / "flows" / "workloads"
_MIB = 1 << 20
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
ROUNDS = (2, 4, 6, 10, 20, 40)


def cold_s(subjects: dict[str, Loaded], evict: Eviction, rounds: int) -> tuple[dict[str, float], float]:
    """Median seconds of a call after `evict`, by subject, and of `evict` itself."""
    found: dict[str, list[float]] = {name: [] for name in subjects}
    walks = []
    with no_garbage_collection():
        for _ in range(rounds):
            for name, loaded in subjects.items():
                with loaded.scope():
                    began = time.perf_counter()
                    evict()
                    walks.append(time.perf_counter() - began)
                    found[name].append(time_cold_call(loaded.call, evict))
    return {name: median(times) for name, times in found.items()}, median(walks)


def show_sizes(subjects: list[Subject], rounds: int) -> None:
    """Print what each size of the buffer makes of a call."""
    processors = choose_processors(1, affinity())
    os.sched_setaffinity(0, processors)
    torch.set_num_threads(1)
    with torch.inference_mode():
        opened = {subject.name: load_candidate(subject) for subject in subjects}
        for loaded in opened.values():
            with loaded.scope():
                for _ in range(20):
                    loaded.call()
        print(f"| buffer | walk | {' | '.join(opened)} |")
        print(f"|---|---|{'---|' * len(opened)}")
        for size in SIZES:
            times, walk_s = cold_s(opened, Eviction(processors, size * _MIB), rounds)
            cells = " | ".join(f"{1e3 * seconds:.3g} ms" for seconds in times.values())
            print(f"| {size} MiB | {1e3 * walk_s:.1f} ms | {cells} |", flush=True)


def deviation(measured: Measured, rounds: int | None) -> float:
    """Standard deviation over launches of one subject's log ratio, root mean square over candidates."""
    squares = []
    for name in measured.names():
        if name not in (measured.baseline, measured.baseline + COPY_SUFFIX):
            times = [measured.round_s(each)[:, :rounds] for each in (name, measured.baseline)]
            copy = measured.round_s(measured.baseline + COPY_SUFFIX)[:, :rounds]
            squares.append(float(Sample.against_two(*times, copy).logs.var(ddof=1)))
    return math.sqrt(sum(squares) / len(squares))


def show_rounds(measured: Measured) -> None:
    """Print what more cold rounds do to the scatter of launches."""
    cold = measured.with_caches("cold")
    made = cold.round_s(cold.baseline).shape[1]
    print(f"\nwarm: {deviation(measured, None):.1%}")
    for rounds in sorted({min(rounds, made) for rounds in ROUNDS}):
        print(f"cold, {rounds:2} rounds: {deviation(cold, rounds):.1%}")
    shares = [launch.cold_wall_s / launch.end_s for launch in measured.launches]
    print(f"share of a launch: {median(shares):.0%} ({min(shares):.0%} to {max(shares):.0%})", flush=True)


def main() -> None:
    """Print both tables of each workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", help="a built-in workload; repeatable")
    parser.add_argument("--store", type=Path, default=Path("nightquant-store"))
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15, help="calls after a walk of each size")
    arguments = parser.parse_args()
    workspace = Workspace(ArtifactStore(arguments.store))
    print(this_machine().cpu, flush=True)
    for name in arguments.workload or ["word-lm"]:
        workload = read_workload(_WORKLOADS / f"{name}.toml")
        job = obtain(workspace, workload, prepare(workspace, workload))
        subjects = [each.subject(workspace) for each in candidates_of(job, workspace)]
        profile = PROFILES[arguments.profile].model_copy(update={"launches": arguments.launches})
        with host_lock(LOCK):
            print(f"\n{name}", flush=True)
            measured = Session(workload.baseline_name, profile).measure(subjects)
            show_sizes(subjects, arguments.rounds)
        show_rounds(measured)


if __name__ == "__main__":
    main()
