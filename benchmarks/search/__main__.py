"""nightquant's search beside an exhaustive measurement, beside the searches of other libraries, and when it is killed.

Run it where nothing else runs::

    python -m benchmarks.search --peers --exhaustive --data FOLDER
    python -m benchmarks.search --share 0.33 --data FOLDER
    python -m benchmarks.search --only planted --keys 'methods = ["static"]' --seeds 40
    python -m benchmarks.search --only planted --keys 'methods = ["static"]' --kills 10

The models are the built-in workloads, MobileNetV3-small (on `cifar10-small.tar` in FOLDER, or on rendered characters),
and a network with outlier channels, planted by rescaling that preserves its function, so that plain int8 fails.

Each search gets a store that contains the data and the weights only. The exhaustive measurement evaluates every recipe
of the search's space and its variants on the complete selection split, and for each recipe that fails, the same recipe
with 1, 2, 3, … layers in float; two launches time each. With --share, the exhaustive measurement runs first, and the
budget of each search is this share of its time. Neither time includes the start of a process or the preparation of data
and weights. All results are judged together: quality on `test`, and speed in the benchmark's own launches. The
hypervolume is the area under speed-ups (log2) and unspent quality (1 at no loss, 0 at the bound) that the measured
trials dominate. Seeds are not timed again. With --keys, the workload file lists only the baseline's recipe.

NNCF is one of nightquant's own extras. For the other peers, install neural-compressor 3.10, olive-ai 0.13.0,
lightning-utilities, torchmetrics, optuna, pandas, colorlog, prompt-toolkit, questionary, wcwidth, py-cpuinfo,
prettytable and opentelemetry-sdk with ``pip install --no-deps --target PEERS``, and set PYTHONPATH=PEERS.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.search.bench import EXHAUSTIVE, Bench, Finding, exhausted, peer_finding, searched
from benchmarks.search.subjects import MODELS, PEERS
from tasks.benchmark.statistics import Ratio
from tasks.machine import this_machine
from tasks.outputs import intra_op_threads
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


def print_seeds(bench: Bench, first: int, count: int) -> None:
    """Search with other data and other initial weights; print how often the bound holds on the test split."""
    findings = []
    for seed in range(first, first + count):
        one = Bench(bench.model, bench.data, bench.folder / f"seed-{seed}", bench.budget_s, bench.keys, seed)
        findings.append(finding := searched(one))
        one.judge([finding], timed=False)
        shutil.rmtree(one.folder)
        print(f"- seed {seed}: {finding.name}, {finding.loss}", flush=True)
    losses = [one.loss for one in findings if one.loss]
    held = sum(loss[0] <= bench.bound for loss in losses)
    print(f"\n| {bench.model}, bound {bench.bound:g} | seeds | winners | bound holds on test | interval above it |")
    print("|---|---:|---:|---:|---:|")
    above = sum(loss[1] > bench.bound for loss in losses)
    print(f"| | {count} | {len(losses)} | {held} ({held / max(len(losses), 1):.0%}) | {above} |\n", flush=True)


def print_kills(bench: Bench, count: int) -> None:
    """Kill searches at random points, and let each go on; print the winners, and what the searches spent."""
    draw, names, longest_s = random.Random(0), [], 0.0
    print(f"| {bench.model}, killed after | winner | speed-up | spent of {bench.budget_s:.0f} s | known trials |")
    print("|---|---|---:|---:|---:|")
    for number in range(count + 1):  # nobody kills the first
        store, after_s = bench.new_store(f"store-{number}"), draw.uniform(0.0, longest_s)
        if number:
            process = bench.start(store)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=after_s)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        result, wall_s = bench.search(store)
        longest_s = longest_s or wall_s
        shutil.rmtree(store)
        best = next(iter(result.finalists), None)
        names.append(best.name if best else "none")
        known, when = sum(trial.known for trial in result.trials), f"{after_s:.0f} s" if number else "never"
        speed = shown(best.speed if best else None)
        print(f"| {when} | {names[-1]} | {speed} | {result.spent_s:.0f} s | {known} |", flush=True)
    print(f"\nThe winner is the same in {names[1:].count(names[0])} of {count} searches.\n", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MODELS, action="append", help="search this model; repeatable (default: all)")
    parser.add_argument("--data", type=Path, help="read cifar10-small.tar from this folder")
    parser.add_argument("--budget", type=float, default=300, help="seconds for each search (default: %(default)s)")
    parser.add_argument("--share", type=float, help="budget of each search, as a share of the exhaustive time")
    parser.add_argument("--peers", action="store_true", help="run the searches of the other libraries")
    parser.add_argument("--exhaustive", action="store_true", help="measure the complete space")
    parser.add_argument("--keys", action="append", default=[], help="add this TOML line to [search]; repeatable")
    parser.add_argument("--seeds", type=int, default=0, help="repeat with this many data sets and initial weights")
    parser.add_argument("--first-seed", type=int, default=0, help="begin with this seed (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=0, help="kill this many searches, each at a random point")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    machine = this_machine()
    print(f"`python -m benchmarks.search {' '.join(sys.argv[1:])}` on {machine.cpu}\n", flush=True)
    with tempfile.TemporaryDirectory() as temporary, intra_op_threads(1):
        for model in options.only or MODELS:
            bench = Bench(model, options.data, Path(temporary) / model, options.budget, options.keys)
            if options.seeds:
                print_seeds(bench, options.first_seed, options.seeds)
            if options.kills:
                print_kills(bench, options.kills)
            if not options.seeds and not options.kills:
                reference = []
                if options.share:
                    reference = [exhausted(bench)]
                    bench.budget_s = options.share * reference[0].wall_s
                own = searched(bench)
                if options.exhaustive and not reference:
                    reference = [exhausted(bench)]
                others = [peer_finding(bench, peer) for peer in PEERS] if options.peers else []
                print_comparison(bench, [own, *reference, *others])


if __name__ == "__main__":
    main()
