"""How long nights take, against another revision: whole nights of the built-in workloads, alternating on this host.

    python -m benchmarks.nights --against REV [--pairs 3] [--profile quick]

Clones REV into a temporary folder and runs it with this environment's libraries. A pair is a first night in an empty
store and a later night in the same store, of REV and of this tree; the tree that runs first alternates. Prints every
pair, then for each quantity the median of the pairs' ratios with the smallest and the largest, and the median seconds
of each phase of a night. Ends with the decisions that differ. "Outside" is the part of the benchmarks' wall time that
lies outside timed blocks. A phase ends with the last stage of its kind, so the first stages of the next may run in it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import duckdb

ROOT = Path(__file__).parents[1]
_BENCHMARK = re.compile(r": benchmark: done in (?P<seconds>[\d.]+) s")
_DONE = re.compile(r"^ *(?P<minutes>\d+):(?P<seconds>\d\d) (?P<label>.*): done in", re.MULTILINE)
# The phases of a night, with the end of the labels of their last stages.
_PHASES = {
    "start": "server",
    "data and training": "obtain checkpoint",
    "building and evaluating": "evaluate",
    "choosing baselines": "find fastest float",
    "benchmarks": "benchmark",
}
_REST = "publishing, report, end"
_TIMED = """
    select coalesce(sum(seconds * calls_per_block), 0)
    from samples join measurements using (run_id, workload, recipe, runtime, setting, threads, batch_size)
    where run_id = ?
"""
_DECISIONS = "select workload, recipe, runtime, decision from promotions where run_id = ? order by all"


@dataclass(frozen=True)
class Night:
    """What one night took: wall seconds, in all and by phase, seconds of benchmarks, the share outside, peak bytes."""

    wall_s: float
    benchmarks_s: float
    outside: float
    peak_bytes: int
    phases_s: dict[str, float]
    decisions: dict[tuple[str, str, str], str]


QUANTITIES: dict[str, Callable[[Night], float]] = {
    "wall": lambda night: night.wall_s,
    "benchmarks": lambda night: night.benchmarks_s,
    "outside": lambda night: night.outside,
    "peak memory": lambda night: night.peak_bytes / 2**20,
}


def run(tree: Path, store: Path, profile: str) -> Night:
    """Run a night of a source tree, and read what it took from its output and its store."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "DO_NOT_TRACK": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise, every process compiles the modules
    command = [sys.executable, "-m", "flows", "nightly", "--profile", profile, "--store", str(store)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        begun = time.perf_counter()
        process = subprocess.Popen(command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT)
        # The usage of a process includes its finished children: the largest resident size of any process of the night.
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode not in (0, 3):
        print("\n".join(line for line in text.splitlines() if "fail" in line.lower()) or text[-3000:], flush=True)
    benchmarks = sum(float(match["seconds"]) for match in _BENCHMARK.finditer(text))
    with duckdb.connect(str(store / "results.duckdb"), read_only=True) as results:
        [run_id] = results.execute("select max_by(run_id, started_at) from runs").fetchone() or ("",)
        [timed] = results.execute(_TIMED, [run_id]).fetchone() or (0.0,)
        decisions = {(w, c, t): decision for w, c, t, decision in results.execute(_DECISIONS, [run_id]).fetchall()}
    return Night(wall, benchmarks, 1 - timed / benchmarks, usage.ru_maxrss * 1024, phases_of(text, wall), decisions)


def phases_of(output: str, wall_s: float) -> dict[str, float]:
    """Read from a night's output how many seconds each phase took."""
    ends = [(match["label"], 60 * int(match["minutes"]) + int(match["seconds"])) for match in _DONE.finditer(output)]
    phases, begun = {}, 0.0
    for phase, kind in _PHASES.items():
        end = max((seconds for label, seconds in ends if label.endswith(kind)), default=begun)
        phases[phase], begun = max(0.0, end - begun), max(begun, end)
    return phases | {_REST: wall_s - begun}


def pair(trees: dict[str, Path], folder: Path, profile: str, number: int) -> dict[tuple[str, str], Night]:
    """Run a first and a later night of each tree, keyed by kind of night and tree; print them."""
    names = list(trees) if number % 2 else list(reversed(trees))
    nights = {}
    for kind in ("first", "later"):
        for name in names:
            night = nights[kind, name] = run(trees[name], folder / f"store-{name}-{number}", profile)
            shown = " | ".join(f"{read(night):.3g}" for read in QUANTITIES.values())
            print(f"| {number} | {kind} | {name} | {shown} |", flush=True)
    return nights


def main() -> None:
    """Print every pair, the ratios, and the decisions that differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", required=True, help="compare with this revision")
    parser.add_argument("--pairs", type=int, default=3, help="run so many pairs")
    parser.add_argument("--profile", default="quick", help="run nights with this profile")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "other")], check=True)
        subprocess.run(["git", "-C", str(folder / "other"), "checkout", "--quiet", arguments.against], check=True)
        trees = {arguments.against: folder / "other", "here": ROOT}
        print(f"| pair | night | tree | {' | '.join(QUANTITIES)} (s, s, share, MiB) |\n|{'---|' * 7}", flush=True)
        pairs = [pair(trees, folder, arguments.profile, number + 1) for number in range(arguments.pairs)]
    print(f"\n| night | quantity | here ÷ {arguments.against} |\n|---|---|---|")
    for kind in ("first", "later"):
        for name, read in QUANTITIES.items():
            ratios = [read(nights[kind, "here"]) / read(nights[kind, arguments.against]) for nights in pairs]
            print(f"| {kind} | {name} | {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |")
    print("\n| night | phase | " + " | ".join(f"{name} (s)" for name in trees) + " |\n|---|---|---|---|")
    for kind in ("first", "later"):
        for phase in (*_PHASES, _REST):
            cells = [median(nights[kind, name].phases_s[phase] for nights in pairs) for name in trees]
            print(f"| {kind} | {phase} | {' | '.join(f'{cell:.0f}' for cell in cells)} |")
    for number, nights in enumerate(pairs, 1):
        for kind in ("first", "later"):
            other, here = nights[kind, arguments.against].decisions, nights[kind, "here"].decisions
            for key in sorted(other.keys() | here.keys()):
                if other.get(key) != here.get(key):
                    print(f"pair {number}, {kind}: {'/'.join(key)}: {other.get(key)} there, {here.get(key)} here")


if __name__ == "__main__":
    main()
