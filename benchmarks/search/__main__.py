"""nightquant's search beside an exhaustive measurement, and beside the searches of other libraries.

Run it where nothing else runs::

    python -m benchmarks.search --share 0.32 --peers --data FOLDER

The models are the built-in workloads, MobileNetV3-small (on `cifar10-small.tar` in FOLDER, or on rendered characters),
and a network with outlier channels, planted by rescaling that preserves its function, so that plain int8 fails.

Each search gets a store that contains the data and the weights only. The exhaustive measurement evaluates every recipe
of the search's space and its variants on the complete selection split, and for each recipe that fails, the same recipe
with 1, 2, 3, … layers in float; two launches time each. With --share, the exhaustive measurement runs first, and the
budget of each search is this share of its time. Neither time includes the start of a process or the preparation of data
and weights. All results are judged together: quality on `test`, and speed in the benchmark's own launches. The
hypervolume is the area under speed-ups (log2) and unspent quality (1 at no loss, 0 at the bound) that the measured
trials dominate.

NNCF is one of nightquant's own extras. For the other peers, install neural-compressor 3.10, olive-ai 0.13.0,
lightning-utilities, torchmetrics, optuna, pandas, colorlog, prompt-toolkit, questionary, wcwidth, py-cpuinfo,
prettytable and opentelemetry-sdk with ``pip install --no-deps --target PEERS``, and set PYTHONPATH=PEERS.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.search.bench import EXHAUSTIVE, Bench, Finding, exhausted, peer_finding, searched
from benchmarks.search.peer_searches import PEERS
from benchmarks.search.subjects import MODELS
from tasks.data.outputs import intra_op_threads
from tasks.environment.machine import this_machine
from tasks.measure.benchmark.statistics import Ratio
from tasks.search.trial import Speed, Trial

ROOT = Path(__file__).parents[2]


def hypervolume(bench: Bench, trials: Sequence[Trial]) -> float:
    """Return the area of speed-ups (log2) and unspent quality that trials dominate."""
    points = [
        (math.log2(trial.speed.value), min(1 - trial.drop.value / bench.bound, 1.0))
        for trial in trials
        if trial.speed and trial.drop and trial.speed.value > 1 and trial.drop.value < bench.bound
    ]
    area = best = 0.0
    for speed, unspent in sorted(points, reverse=True):
        area += speed * max(unspent - best, 0.0)
        best = max(best, unspent)
    return area


def print_comparison(bench: Bench, findings: Sequence[Finding]) -> None:
    """Judge the findings for one model, the first of which is nightquant's; print a table and how they compare."""
    bench.judge(findings)
    print(f"| {bench.model}, bound {bench.bound:g} | result | loss on test | speed-up | MB | s | trials | volume |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for one in findings:
        loss = "{:+.3g} ({:+.3g} to {:+.3g})".format(*one.loss) if one.loss else "–"
        size, volume = f"{one.size_bytes / 1e6:.2f}", f"{hypervolume(bench, one.trials):.2f}" if one.trials else "–"
        count = sum(trial.drop is not None for trial in one.trials) or "–"
        print(
            f"| {one.by} | {one.name} | {loss} | {shown(one.speed)} | {size} | {one.wall_s:.0f} | {count} | {volume} |"
        )
    print()
    own, *others = findings
    for other in others:
        if other.by == EXHAUSTIVE:
            share = f"{own.spent_s / other.wall_s:.0%} of the exhaustive measurement's time"
            print(f"- The search spent {own.spent_s:.0f} s, {share}; its command took {own.wall_s:.0f} s.")
        if own.speed and other.speed and other.loss and other.loss[0] <= bench.bound:
            relation = "slower than" if own.speed.high < other.speed.low else "within the intervals of"
            relation = "faster than" if own.speed.low > other.speed.high else relation
            print(f"- The winner is {relation} the result of {other.by}.")
    print(flush=True)


def shown(speed: Ratio | Speed | None) -> str:
    """Format a speed-up with its interval."""
    return f"{speed.value:.2f} ({speed.low:.2f}–{speed.high:.2f})" if speed else "–"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MODELS, action="append", help="search this model; repeatable (default: all)")
    parser.add_argument("--data", type=Path, help="read cifar10-small.tar from this folder")
    parser.add_argument("--budget", type=float, default=300, help="seconds for each search (default: %(default)s)")
    parser.add_argument("--share", type=float, help="budget of each search, as a share of the exhaustive time")
    parser.add_argument("--peers", action="store_true", help="run the searches of the other libraries")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    machine = this_machine()
    print(f"`python -m benchmarks.search {' '.join(sys.argv[1:])}` on {machine.cpu}\n", flush=True)
    with tempfile.TemporaryDirectory() as temporary, intra_op_threads(1):
        for model in options.only or MODELS:
            bench = Bench(model, options.data, Path(temporary) / model, options.budget)
            reference = [exhausted(bench)] if options.share else []
            if options.share:
                bench.budget_s = options.share * reference[0].wall_s
            own = searched(bench)
            others = [peer_finding(bench, peer) for peer in PEERS] if options.peers else []
            print_comparison(bench, [own, *reference, *others])


if __name__ == "__main__":
    main()
