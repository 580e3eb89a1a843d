"""Answer a search's requests: Prefect tasks build, evaluate and time trials, and rank the trials' layers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TypeVar

from prefect.futures import PrefectFuture

from flows import steps
from flows.execution.task_runners import place_benchmarks
from flows.fan_out import settle
from flows.settings import Settings
from storage.errors import MeasurementError
from storage.results import QualityUnit
from tasks.benchmark.stage import BenchmarkCandidate
from tasks.job import Job
from tasks.refs import CandidateRef
from tasks.results import Evaluation, Failure
from tasks.search.trial import Build, Drop, Found, Rank, Request, Screen, Selection, Time, Timed, Trial
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

R = TypeVar("R")


class TimeUpError(Exception):
    """The search's budget ended before a stage ended, so the stage has no outcome."""


class Answers:
    """Object that answers requests about the trials of one job; ``baseline`` is the built baseline candidate."""

    def __init__(
        self,
        job: Job[Workload],
        selection: Selection,
        unit: QualityUnit,
        settings: Settings,
        store: str,
        deadline: float,
    ) -> None:
        self._job, self._selection, self._unit = job, selection, unit
        self._settings, self._store, self._deadline = settings, store, deadline
        recipe, runtime = job.workload.baseline()
        self._reference = job.workload.recipe_named(recipe), runtime
        self._subjects: dict[str, BenchmarkCandidate] = {}  # candidates that can be timed, keyed by name
        self._qualities: dict[int, Evaluation] = {}  # evaluations of the baseline, keyed by sample size
        self._lock = threading.Lock()  # held while one of the calling threads evaluates the baseline
        built = settle(steps.build.submit(job, *self._reference, store), "build")
        self.baseline = required(built, "the baseline could not be built")
        self._built = {self.baseline.name: self.baseline}

    def find(self, request: Request, trials: Sequence[Trial]) -> list[Found | None]:
        """Answer a request about `trials`; return one answer per trial, in the order of `trials`."""
        try:
            return [*self._find(request, trials)]
        except TimeUpError:
            return [None] * len(trials)

    def _find(self, request: Request, trials: Sequence[Trial]) -> list[Found]:
        match request:
            case Build():
                built = self._build([(trial.recipe, trial.runtime) for trial in trials])
                return [_failed(ref) if isinstance(ref, Failure) else Found(size_bytes=ref.size_bytes) for ref in built]
            case Screen(samples=samples):
                return self._screen(trials, samples)
            case Time():
                return self._time(trials)
            case Rank():
                return self._rank(trials)

    def _build(self, candidates: Sequence[tuple[Recipe, str]]) -> list[CandidateRef | Failure]:
        """Build candidates; reuse artifacts that an earlier process built."""
        new = [one for one in candidates if _name(one) not in self._built]
        futures = [steps.build.submit(self._job, *one, self._store, self._deadline) for one in new]
        built = self._settled(futures, "build")
        refs = dict(zip(map(_name, new), built, strict=True))
        self._built |= {name: ref for name, ref in refs.items() if not isinstance(ref, Failure)}
        return [(refs | self._built)[_name(one)] for one in candidates]

    def _screen(self, trials: Sequence[Trial], samples: int) -> list[Found]:
        baseline = self._baseline(samples)
        outcomes = self._evaluate([(trial.recipe, trial.runtime) for trial in trials], samples)
        good = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
        future = steps.compare.submit(self._job.workload, baseline, good, self._store, deadline=self._deadline)
        (compared,) = self._settled([future], "compare")
        if isinstance(compared, Failure):
            return [_failed(outcome if isinstance(outcome, Failure) else compared) for outcome in outcomes]
        drops = iter([Drop.of(comparison, baseline, self._unit) for comparison in compared])
        return [_failed(one) if isinstance(one, Failure) else Found(drop=next(drops)) for one in outcomes]

    def _baseline(self, samples: int) -> Evaluation:
        with self._lock:
            if samples not in self._qualities:
                (quality,) = self._evaluate([self._reference], samples)
                self._qualities[samples] = required(quality, "the baseline could not be evaluated")
            return self._qualities[samples]

    def _evaluate(self, candidates: Sequence[tuple[Recipe, str]], samples: int) -> list[Evaluation | Failure]:
        """Evaluate candidates on samples of the selection split."""
        job, built = self._selection.job(self._job, samples), self._build(candidates)
        good = [ref for ref in built if not isinstance(ref, Failure)]
        futures = [steps.evaluate.submit(job, ref, self._store, self._deadline) for ref in good]
        qualities = self._settled(futures, "evaluate")
        outcomes = dict(zip((ref.name for ref in good), qualities, strict=True))
        for ref in good:
            if not isinstance(quality := outcomes[ref.name], Failure):
                self._subjects[ref.name] = BenchmarkCandidate(candidate=ref, outputs=quality.outputs)
        return [ref if isinstance(ref, Failure) else outcomes[ref.name] for ref in built]

    def _time(self, trials: Sequence[Trial]) -> list[Found]:
        # An earlier process may have evaluated some of the candidates.
        self._baseline(self._selection.samples[0])
        missing = [(trial.recipe, trial.runtime) for trial in trials if trial.name not in self._subjects]
        outcomes = zip(missing, self._evaluate(missing, self._selection.samples[0]), strict=True)
        broken = {_name(one): _failed(outcome) for one, outcome in outcomes if isinstance(outcome, Failure)}
        names = [trial.name for trial in trials if trial.name not in broken]
        timed = self._timed(names) if names else Timed(speeds={}, refused={})
        if isinstance(timed, Failure):
            # If the baseline alone cannot be timed either, no trial has caused the failure.
            required(self._timed([]), "the baseline could not be timed")
        found = broken | self._speeds(names, timed)
        return [found[trial.name] for trial in trials]

    def _speeds(self, names: Sequence[str], timed: Timed | Failure) -> dict[str, Found]:
        """Return the speeds in `timed`; if timing failed, time each trial alone to find the broken ones."""
        if not isinstance(timed, Failure):
            speeds = {name: Found(speed=speed, waited_s=timed.waited_s) for name, speed in timed.speeds.items()}
            return speeds | {name: Found(failed=f"benchmark: {reason}") for name, reason in timed.refused.items()}
        if len(names) == 1:
            return {names[0]: _failed(timed)}
        return {name: self._speeds([name], self._timed([name]))[name] for name in names}

    def _timed(self, names: Sequence[str]) -> Timed | Failure:
        baseline = self._subjects[self._job.workload.baseline_name]
        subjects = [self._subjects[name] for name in names]
        with place_benchmarks(self._settings)():
            future = steps.time_trials.submit(
                self._job, baseline, subjects, self._store, self._settings.fingerprint, self._deadline
            )
        (timed,) = self._settled([future], "benchmark")
        return timed

    def _rank(self, trials: Sequence[Trial]) -> list[Found]:
        futures = [steps.rank_layers.submit(self._job, trial.recipe, self._store, self._deadline) for trial in trials]
        ranked = self._settled(futures, "study")
        return [_failed(layers) if isinstance(layers, Failure) else Found(layers=layers) for layers in ranked]

    def _settled(self, futures: Sequence[PrefectFuture[R]], stage: str) -> list[R | Failure]:
        """Wait for all stages; return each stage's result or failure."""
        outcomes: list[R | Failure] = []
        for future in futures:
            outcome = settle(future, stage)
            outcomes.append(outcome)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        if failures and time.time() >= self._deadline:
            raise TimeUpError
        for failure in failures:
            if failure.unheard:
                required(failure, "a stage's outcome is unknown")
        return outcomes


def required(outcome: R | Failure, what: str) -> R:
    """Return a stage's result; raise `MeasurementError` if the stage failed."""
    if isinstance(outcome, Failure):
        raise MeasurementError(f"The search cannot continue, because {what}: {outcome.error}")
    return outcome


def _failed(failure: Failure) -> Found:
    return Found(failed=f"{failure.stage}: {failure.error}")


def _name(candidate: tuple[Recipe, str]) -> str:
    return f"{candidate[0].name}/{candidate[1]}"
