"""Do quick benchmarks agree with each other? The share of runs whose interval covers the median of all runs.

    python -m benchmarks.repeatability --workload lstm-demo --workload word-lm

Prepares, trains, quantizes and evaluates what the store does not hold yet, then benchmarks each workload ten times.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from storage.artifacts import ArtifactStore
from tasks.benchmark.messages import PROFILES
from tasks.benchmark.stage import BenchmarkCandidate, benchmark
from tasks.job import Workspace
from tasks.machine import this_machine
from tasks.results import BenchmarkResult
from tasks.stages import build, evaluate, obtain, prepare
from tasks.workload import read_workload

_WORKLOADS = Path(__file__).parent.parent / "flows" / "workloads"


def show(workload: str, results: list[BenchmarkResult]) -> None:
    """Print the coverage of each candidate, then the resolutions and what the benchmarks took."""
    for index, row in enumerate(results[0].timings):
        if f"{row.recipe}/{row.runtime}" == results[0].baseline and row.setting == "primary":
            continue
        rows = [result.timings[index] for result in results]
        middle = 1.0 if row.setting == "a/a" else median(each.speedup for each in rows)
        covering = sum(each.speedup_low <= middle <= each.speedup_high for each in rows)
        widths = [(each.speedup_high - each.speedup_low) / each.speedup for each in rows]
        launches = median(each.launches for each in rows)
        name = "A/A (covers 1)" if row.setting == "a/a" else f"{row.recipe}/{row.runtime}"
        print(
            f"{workload:10} {name:36} median {middle:6.3f}  covered by {covering}/{len(rows)}  "
            f"width {median(widths):.1%}  launches {launches:g}"
        )
    resolutions = sorted(each.resolution for each in results)
    outside = median(1 - result.timed_s / result.wall_s for result in results)
    print(
        f"{workload:10} resolution ±{resolutions[0]:.0%} to ±{resolutions[-1]:.0%}; "
        f"wall {median(r.wall_s for r in results):.1f} s, of which outside timed blocks {outside:.0%}"
    )


def main() -> None:
    """Run the benchmarks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", help="a built-in workload; repeatable")
    parser.add_argument("--store", type=Path, default=Path("nightquant-store"))
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    workspace = Workspace(ArtifactStore(arguments.store))
    print(this_machine().cpu, this_machine().libraries, flush=True)
    for name in arguments.workload or ["lstm-demo", "word-lm"]:
        workload = read_workload(_WORKLOADS / f"{name}.toml")
        job = obtain(workspace, workload, prepare(workspace, workload))
        built = [build(workspace, job, recipe, runtime) for recipe in workload.recipe for runtime in recipe.runtimes]
        candidates = [
            BenchmarkCandidate(candidate=candidate, outputs=evaluate(workspace, job, candidate).outputs)
            for candidate in built
        ]
        results = [benchmark(job, candidates, PROFILES[arguments.profile], workspace) for _ in range(arguments.runs)]
        show(name, results)


if __name__ == "__main__":
    main()
