"""One model of `benchmarks.search`: run the searches and the exhaustive measurement, and judge what they found."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from pebble import ProcessExpired, ProcessPool

from benchmarks.search.peer_searches import PEER, open_peer, run_peer
from benchmarks.search.subjects import built_and_evaluated, obtained, write_workload
from flows.request import SearchResult
from storage.errors import NightquantError
from storage.locks import host_lock
from tasks.data.evaluation import Quality
from tasks.domains import domain_named
from tasks.environment.libraries import in_one_line
from tasks.environment.machine import available_cores, this_machine
from tasks.measure.benchmark.messages import PROFILES, Subject
from tasks.measure.benchmark.protocol import LOCK, Session
from tasks.measure.benchmark.stage import BenchmarkCandidate
from tasks.measure.benchmark.statistics import Ratio
from tasks.measure.evaluate import INTERVALS
from tasks.quantize.spec import excluding, renamed, spec_of
from tasks.run.stages import build, compare, evaluate, rank_layers, time_trials
from tasks.runtimes.base import Opened
from tasks.runtimes.build import open_candidate
from tasks.search.space import space, variants
from tasks.search.trial import Drop, Trial
from tasks.workload import Workload
from tasks.workload.recipe import CandidateName

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
    singly: bool = True  # whether to evaluate each row in a separate call, because rows may affect each other
    size_bytes: int = 0
    loss: tuple[float, float, float] | None = None
    speed: Ratio | None = None
    spent_s: float = 0.0  # without the start of the command, and without the preparation of data and weights


class Bench:
    """One model with its workload file, and a store that contains its data and weights."""

    def __init__(self, model: str, data: Path | None, folder: Path, budget_s: float) -> None:
        folder.mkdir(parents=True)
        self.model, self.folder, self.budget_s = model, folder, budget_s
        self.workload = write_workload(model, data, folder, folder / "store")
        self.job, self.workspace = obtained(self.workload, folder / "store")
        self.bound: float = self.job.workload.gate.max_quality_drop or 0.0
        name = self.job.workload.baseline_name
        self.baseline = self.job.workload.recipe_named(name.recipe), name.runtime

    def new_store(self, name: str) -> Path:
        """Copy the store with the data and the weights."""
        return Path(shutil.copytree(self.folder / "store", self.folder / name, symlinks=True))

    def search(self, store: Path) -> tuple[SearchResult, float]:
        """Run nightquant's search as a user does; return its result and the command's wall time."""
        options = ("--workload", self.workload, "--store", store, "--budget", self.budget_s, "--format", "json")
        command = [sys.executable, "-P", "-m", "flows", "search", *map(str, options)]
        began = time.monotonic()
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"The search failed:\n{done.stderr[-3000:]}")
        return SearchResult.model_validate_json(done.stdout), time.monotonic() - began

    def found(self, by: str, store: Path, best: Trial | None, trials: Sequence[Trial], wall_s: float) -> Finding:
        """Return the best trial of a search as a finding."""
        if best is None:
            return Finding(by, wall_s, "no trial passes", trials)
        job, workspace = obtained(self.workload, store)
        candidate = build(workspace, job, best.recipe, best.runtime)
        timed = BenchmarkCandidate(candidate=candidate, outputs=evaluate(workspace, job, candidate).outputs)
        subject = timed.subject(workspace).model_copy(update={"name": CandidateName(by, best.runtime)})
        singly = spec_of(best.recipe).couples_rows
        opened = open_candidate(candidate, workspace, 1)
        return Finding(by, wall_s, str(best.name), trials, subject, opened, singly, candidate.size_bytes)

    def judge(self, findings: Sequence[Finding]) -> None:
        """Judge findings on the test split, and time them in common launches."""
        recipe, runtime = self.baseline
        reference = Trial(number=1, recipe=recipe, runtime=runtime, origin="written")
        baseline = self.found("baseline", self.folder / "store", reference, (), 0.0)
        self._time(baseline, findings)
        before = self._quality(baseline)
        sign = -1 if before.higher_is_better else 1
        for finding in findings:
            if finding.subject and finding.speed:
                try:
                    after = self._quality(finding)
                except Exception as error:
                    if finding.subject.name.runtime != PEER:  # a candidate of nightquant's, not a peer's file
                        raise
                    finding.name += f" (cannot be evaluated: {in_one_line(error)})"
                    finding.speed = None
                    continue
                samples = (quality.paired()["quality"].numpy() for quality in (before, after))
                low, high = sorted(sign * end for end in INTERVALS[before.contributions](*samples)[1:])
                finding.loss = sign * (after.value - before.value), low, high

    def _time(self, baseline: Finding, findings: Sequence[Finding]) -> None:
        subjects = [one.subject for one in (baseline, *findings) if one.subject]
        # A peer's file has no golden outputs of its own; the baseline's golden file provides the inputs.
        subjects = [one if one.golden else one.model_copy(update={"golden": subjects[0].golden}) for one in subjects]
        threads = self.job.workload.benchmark.threads
        with host_lock(LOCK):
            measured = Session(subjects[0].name, PROFILE, threads, "benchmarks.search.peer_searches:load").measure(
                subjects
            )
        for finding in findings:
            if finding.subject and finding.subject.key in measured.refused:
                finding.name += f" (cannot be timed: {measured.refused[finding.subject.key]})"
            elif finding.subject:
                finding.speed = measured.moderated(finding.subject.key)

    def _quality(self, finding: Finding) -> Quality:
        assert finding.opened
        with finding.opened.scope(), torch.inference_mode():
            domain = domain_named(self.job.workload.domain)
            return domain.evaluate(self.job, finding.opened.call, self.workspace, singly=finding.singly)


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
            types, name = {layer.module: layer.type for layer in layers}, trial.recipe.name
            recipes = [renamed(excluding(trial.recipe, types, count), name) for count in range(1, len(layers))]
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
    return Finding(
        peer, wall_s, path.name, (), Subject(name=CandidateName(peer, PEER), folder=str(path)), opened, size_bytes=size
    )
