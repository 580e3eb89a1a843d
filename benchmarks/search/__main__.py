"""nightquant's search beside an exhaustive measurement, beside the searches of other libraries, and when it is killed.

Run it where nothing else runs::

    python -m benchmarks.search --peers --exhaustive --data FOLDER
    python -m benchmarks.search --share 0.33 --data FOLDER
    python -m benchmarks.search --only planted --seeds 40
    python -m benchmarks.search --only planted --kills 10

The models are the built-in workloads, MobileNetV3-small (on `cifar10-small.tar` in FOLDER, or on rendered characters),
and a network with outlier channels, planted by rescaling that preserves its function, so that plain int8 fails.

Each search gets a store that contains the data and the weights only. The exhaustive measurement evaluates every recipe
of the search's space and its variants on the complete selection split, and for each recipe that fails, the same recipe
with 1, 2, 3, … layers in float; two launches time each. With --share, the exhaustive measurement runs first, and the
budget of each search is this share of its time. Neither time includes the start of a process or the preparation of data
and weights. All results are judged together: quality on `test`, and speed in the
benchmark's own launches. The hypervolume is the area under speed-ups (log2) and unspent quality (1 at no loss, 0 at the
bound) that the measured trials dominate.

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
import time
from collections.abc import Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from pebble import ProcessExpired, ProcessPool

from benchmarks.search.subjects import MODELS, PEERS, built_and_evaluated, obtained, open_peer, run_peer, write_workload
from flows.request import SearchResult
from storage.errors import NightquantError
from storage.locks import host_lock
from tasks.benchmark.messages import PROFILES, Subject
from tasks.benchmark.protocol import LOCK, Session
from tasks.benchmark.stage import BenchmarkCandidate
from tasks.benchmark.statistics import Ratio
from tasks.build import open_candidate
from tasks.data.evaluation import Quality
from tasks.evaluate import INTERVALS
from tasks.extensions import DOMAINS, RUNTIMES
from tasks.libraries import in_one_line
from tasks.machine import available_cores, this_machine
from tasks.outputs import intra_op_threads
from tasks.runtimes.base import Opened
from tasks.search.space import kept_float, space, variants
from tasks.search.trial import Drop, Speed, Trial
from tasks.stages import build, compare, evaluate, rank_layers, time_trials
from tasks.workload import Workload

ROOT = Path(__file__).parents[2]
PROFILE = PROFILES["quick"].model_copy(update={"launches": 5, "budget_s": 0.0})
TIMED_AT_ONCE = 8
EXHAUSTIVE = "exhaustive measurement"


@dataclass
class Finding:
    """What one search found: a model (or as its name the reason why there is none), and all measured trials.

    `Bench.judge` adds the loss on the test split with its interval, and the speed-up.
    """

    by: str
    wall_s: float
    name: str
    trials: Sequence[Trial] = ()
    subject: Subject | None = None
    opened: Opened | None = None
    apart: bool = True  # whether to evaluate each row in a separate call, because rows may affect each other
    size_bytes: int = 0
    loss: tuple[float, float, float] | None = None
    speed: Ratio | None = None
    spent_s: float = 0.0  # without the start of the command, and without the preparation of data and weights


class Bench:
    """One model with its workload file, and a store that contains its data and weights."""

    def __init__(self, model: str, data: Path | None, folder: Path, budget_s: float, seed: int = 0) -> None:
        folder.mkdir(parents=True)
        self.model, self.data, self.folder, self.budget_s = model, data, folder, budget_s
        self.workload = write_workload(model, data, folder, folder / "store", seed)
        self.job, self.workspace = obtained(self.workload, folder / "store")
        self.bound: float = self.job.workload.gate.max_quality_drop or 0.0
        recipe, runtime = self.job.workload.baseline()
        self.baseline = self.job.workload.recipe_named(recipe), runtime

    def new_store(self, name: str) -> Path:
        """Copy the store with the data and the weights."""
        return Path(shutil.copytree(self.folder / "store", self.folder / name, symlinks=True))

    def start(self, store: Path) -> subprocess.Popen[str]:
        """Start nightquant's search as a user does."""
        options = ("--workload", self.workload, "--store", store, "--budget", self.budget_s, "--format", "json")
        command = [sys.executable, "-P", "-m", "flows", "search", *map(str, options)]
        errors = (self.folder / "errors.txt").open("a")
        with errors:
            return subprocess.Popen(
                command, cwd=self.folder, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )

    def search(self, store: Path) -> tuple[SearchResult, float]:
        """Run nightquant's search to its end; return its result and the command's wall time."""
        began, process = time.monotonic(), self.start(store)
        out, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"The search failed:\n{(self.folder / 'errors.txt').read_text()[-3000:]}")
        return SearchResult.model_validate_json(out), time.monotonic() - began

    def found(self, by: str, store: Path, best: Trial | None, trials: Sequence[Trial], wall_s: float) -> Finding:
        """Return the best trial of a search as a finding."""
        if best is None:
            return Finding(by, wall_s, "no trial passes", trials)
        job, workspace = obtained(self.workload, store)
        candidate = build(workspace, job, best.recipe, best.runtime)
        timed = BenchmarkCandidate(candidate=candidate, outputs=evaluate(workspace, job, candidate).outputs)
        subject = timed.subject(workspace).model_copy(update={"name": by})
        apart = RUNTIMES[best.runtime].couples_rows(best.recipe)
        opened = open_candidate(candidate, workspace, 1)
        return Finding(by, wall_s, best.name, trials, subject, opened, apart, candidate.size_bytes)

    def judge(self, findings: Sequence[Finding]) -> None:
        """Judge findings on the test split, and time them in common launches."""
        recipe, runtime = self.baseline
        reference = Trial(number=1, recipe=recipe, runtime=runtime, origin="written")
        baseline = self.found("baseline", self.folder / "store", reference, (), 0.0)
        subjects = [one.subject for one in (baseline, *findings) if one.subject]
        # A peer's file has no golden outputs of its own; the baseline's golden file provides the inputs.
        subjects = [one if one.golden else one.model_copy(update={"golden": subjects[0].golden}) for one in subjects]
        threads = self.job.workload.benchmark.threads
        with host_lock(LOCK):
            measured = Session("baseline", PROFILE, threads, "benchmarks.search.subjects:load").measure(subjects)
        before = self._quality(baseline)
        sign = -1 if before.higher_is_better else 1
        for finding in findings:
            if finding.by in measured.refused:
                finding.name += f" (cannot be timed: {measured.refused[finding.by]})"
            elif finding.subject:
                try:
                    after = self._quality(finding)
                except Exception as error:
                    if finding.subject.runtime:  # a candidate of nightquant's, not a peer's file
                        raise
                    finding.name += f" (cannot be evaluated: {in_one_line(error)})"
                    continue
                samples = (quality.samples["quality"].numpy() for quality in (before, after))
                low, high = sorted(sign * end for end in INTERVALS[before.contributions](*samples)[1:])
                finding.loss = sign * (after.value - before.value), low, high
                finding.speed = measured.moderated(finding.by)

    def _quality(self, finding: Finding) -> Quality:
        assert finding.opened
        with finding.opened.scope(), torch.inference_mode():
            domain = DOMAINS[self.job.workload.domain]
            return domain.evaluate(self.job, finding.opened.call, self.workspace, apart=finding.apart)


def searched(bench: Bench) -> Finding:
    """Run nightquant's search in a store of its own."""
    result, wall_s = bench.search(store := bench.new_store("store-search"))
    found = bench.found("nightquant search", store, next(iter(result.finalists), None), result.trials, wall_s)
    return replace(found, spent_s=result.spent_s)


def exhausted(bench: Bench) -> Finding:
    """Measure the complete space, the variants, and each failing recipe with 1, 2, 3, … layers in float."""
    began, store = time.monotonic(), bench.new_store("store-exhaustive")
    job, workspace = obtained(bench.workload, store)
    reference = build(workspace, job, *bench.baseline)
    types = {module.type for module in reference.coverage}
    usual = [trial for trial in space(job.workload, types, this_machine()) if trial.outcome == "open"]
    more = [trial.model_copy(update={"recipe": recipe}) for trial in usual for recipe in variants(job.workload, trial)]
    measured = measure(bench, store, [*usual, *more])
    repairs = []
    for trial in measured[: len(usual)]:
        # A recipe with more layers in float is not faster.
        if trial.drop and trial.drop.high > bench.bound and trial.speed and trial.speed.high > 1:
            try:
                layers = rank_layers(workspace, job, trial.recipe)
            except NightquantError:  # a method such as `cast` has no layers to keep
                continue
            recipes = [kept_float(trial.recipe, layers, count) for count in range(1, len(layers))]
            repairs += [trial.model_copy(update={"recipe": recipe}) for recipe in recipes]
    measured += measure(bench, store, repairs)
    passing = [trial for trial in measured if trial.speed and passes(trial, job.workload, reference.size_bytes)]
    best = max(passing, key=lambda trial: trial.speed.value if trial.speed else 0.0, default=None)
    return bench.found(EXHAUSTIVE, store, best, measured, time.monotonic() - began)


def passes(trial: Trial, workload: Workload, baseline_bytes: int) -> bool:
    """Return whether a trial's measurements satisfy the bounds on quality, speed and size."""
    least, smaller = workload.gate.min_speedup, workload.gate.min_size_ratio
    is_fast = least is None or trial.speed is None or trial.speed.low >= least
    is_small = smaller is None or trial.size_bytes is None or trial.size_bytes * smaller <= baseline_bytes
    is_good = trial.drop is not None and trial.drop.high <= (workload.gate.max_quality_drop or 0.0)
    return is_good and is_fast and is_small


def measure(bench: Bench, store: Path, trials: Sequence[Trial]) -> list[Trial]:
    """Build and evaluate trials on the complete selection split, and time all that run."""
    job, workspace = obtained(bench.workload, store)
    unique = list({trial.name: trial for trial in trials}.values())
    pairs = [bench.baseline, *((trial.recipe, trial.runtime) for trial in unique)]
    with futures.ProcessPoolExecutor(available_cores(), get_context("spawn")) as pool:
        results = list(pool.map(partial(built_and_evaluated, bench.workload, store), pairs))
    (reference, baseline), *others = results
    assert reference
    assert baseline
    tried, ready = [], {}
    for trial, (candidate, evaluation) in zip(unique, others, strict=True):
        if candidate and evaluation:
            drop = Drop.of(compare(workspace, baseline, [evaluation])[0], baseline, job.workload.gate.quality_drop)
            trial = trial.model_copy(update={"drop": drop, "size_bytes": candidate.size_bytes})
            ready[trial.name] = BenchmarkCandidate(candidate=candidate, outputs=evaluation.outputs)
        tried.append(trial)
    first, names, speeds = BenchmarkCandidate(candidate=reference, outputs=baseline.outputs), list(ready), {}
    for start in range(0, len(names), TIMED_AT_ONCE):
        some = [ready[name] for name in names[start : start + TIMED_AT_ONCE]]
        speeds |= time_trials(workspace, job, first, some).speeds
    return [trial.model_copy(update={"speed": speeds.get(trial.name)}) for trial in tried]


def peer_finding(bench: Bench, peer: str) -> Finding:
    """Run another library's search in a process of its own, which is stopped when the budget is spent."""
    began, path, folder = time.monotonic(), None, bench.folder / peer.replace(" ", "-")
    with ProcessPool(1, context=get_context("spawn")) as pool:
        task = pool.schedule(
            run_peer, args=(peer, bench.workload, bench.new_store(f"store-{folder.name}"), folder, bench.budget_s),
            timeout=bench.budget_s,
        )  # fmt: skip
        try:
            path, reason = task.result()
        except futures.TimeoutError:
            reason = f"not finished after {bench.budget_s:.0f} s"
        except ProcessExpired as error:
            reason = f"its process died with exit code {error.exitcode}"
    wall_s = time.monotonic() - began
    try:
        opened = Opened(open_peer(path)) if path else None
    except Exception as error:  # noqa: BLE001 - a peer's file may be unusable, and the table shows it
        path, reason = None, in_one_line(error)
    if path is None:
        return Finding(peer, wall_s, reason)
    size = sum(file.stat().st_size for file in path.parent.glob(f"{path.stem}.*"))
    return Finding(peer, wall_s, path.name, (), Subject(name=peer, folder=str(path)), opened, size_bytes=size)


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
        one = Bench(bench.model, bench.data, bench.folder / f"seed-{seed}", bench.budget_s, seed)
        findings.append(finding := searched(one))
        one.judge([finding])
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
    parser.add_argument("--seeds", type=int, default=0, help="repeat with this many data sets and initial weights")
    parser.add_argument("--first-seed", type=int, default=0, help="begin with this seed (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=0, help="kill this many searches, each at a random point")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    machine = this_machine()
    print(f"`python -m benchmarks.search {' '.join(sys.argv[1:])}` on {machine.cpu}\n", flush=True)
    with tempfile.TemporaryDirectory() as temporary, intra_op_threads(1):
        for model in options.only or MODELS:
            bench = Bench(model, options.data, Path(temporary) / model, options.budget)
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
