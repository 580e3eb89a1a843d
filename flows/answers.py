"""The steps of a search: their expected durations, and the Prefect tasks that answer the search's requests."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from prefect.futures import PrefectFuture

from flows import steps
from flows.execution.context import place_benchmarks
from flows.fan_out import wait_for
from flows.settings import Settings
from flows.steps import Place
from storage.digest import digest_of
from storage.errors import MeasurementError
from storage.journal import Answer
from storage.results import QualityUnit
from tasks.measure.benchmark.stage import BenchmarkCandidate
from tasks.runtimes.base import runtime_named
from tasks.search.race import Race
from tasks.search.trial import Build, Drop, Found, Rank, Request, Screen, Selection, Time, Timed, Trial
from tasks.values.job import Job
from tasks.values.refs import CandidateRef
from tasks.values.results import Evaluation, Failure
from tasks.workload.recipe import CandidateName, Recipe
from tasks.workload.workload import Workload

R = TypeVar("R")
_COMPILING_S = 30.0  # expected duration of the first build with a runtime that compiles
_TIMING_S = 2.0  # expected duration of timing a trial for the first time
_OVERHEAD_TRIALS = (
    4  # starting the launches, and timing the baseline and its copy, takes as long as timing about four trials
)


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
        self._settings, self._place = settings, Place(store, deadline, settings.fingerprint)
        name = job.workload.baseline_name
        self._reference = {name: job.workload.recipe_named(name.recipe)}
        self._subjects: dict[CandidateName, BenchmarkCandidate] = {}  # candidates that can be timed, keyed by name
        self._qualities: dict[int, Evaluation] = {}  # evaluations of the baseline, keyed by sample size
        self._lock = threading.Lock()  # held while one of the calling threads evaluates the baseline
        built = wait_for(steps.build.submit(Place(store), job, self._reference[name], name.runtime), "build")
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
                built = self._build({trial.name: trial.recipe for trial in trials})
                return [_failed(ref) if isinstance(ref, Failure) else Found(size_bytes=ref.size_bytes) for ref in built]
            case Screen(samples=samples):
                return self._screen(trials, samples)
            case Time():
                return self._time(trials)
            case Rank():
                return self._rank(trials)

    def _build(self, recipes: Mapping[CandidateName, Recipe]) -> list[CandidateRef | Failure]:
        """Build candidates; reuse artifacts that an earlier process built."""
        new = [name for name in recipes if name not in self._built]
        asked = ((recipes[name], name.runtime) for name in new)
        futures = [steps.build.submit(self._place, self._job, recipe, runtime) for recipe, runtime in asked]
        built = self._results(futures, "build")
        refs = dict(zip(new, built, strict=True))
        self._built |= {name: ref for name, ref in refs.items() if not isinstance(ref, Failure)}
        return [(refs | self._built)[name] for name in recipes]

    def _screen(self, trials: Sequence[Trial], samples: int) -> list[Found]:
        baseline = self._baseline(samples)
        outcomes = self._evaluate({trial.name: trial.recipe for trial in trials}, samples)
        good = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
        future = steps.compare.submit(self._place, self._job.workload, baseline, good)
        (compared,) = self._results([future], "compare")
        if isinstance(compared, Failure):
            return [_failed(outcome if isinstance(outcome, Failure) else compared) for outcome in outcomes]
        drops = iter([Drop.of(comparison, baseline, self._unit) for comparison in compared])
        return [_failed(each) if isinstance(each, Failure) else Found(drop=next(drops)) for each in outcomes]

    def _baseline(self, samples: int) -> Evaluation:
        with self._lock:
            if samples not in self._qualities:
                (quality,) = self._evaluate(self._reference, samples)
                self._qualities[samples] = required(quality, "the baseline could not be evaluated")
            return self._qualities[samples]

    def _evaluate(self, recipes: Mapping[CandidateName, Recipe], samples: int) -> list[Evaluation | Failure]:
        """Evaluate candidates on samples of the selection split."""
        job, built = self._selection.job(self._job, samples), self._build(recipes)
        good = [ref for ref in built if not isinstance(ref, Failure)]
        futures = [steps.evaluate.submit(self._place, job, ref) for ref in good]
        qualities = self._results(futures, "evaluate")
        outcomes = dict(zip((ref.name for ref in good), qualities, strict=True))
        for ref in good:
            if not isinstance(quality := outcomes[ref.name], Failure):
                self._subjects[ref.name] = BenchmarkCandidate(candidate=ref, outputs=quality.outputs)
        return [ref if isinstance(ref, Failure) else outcomes[ref.name] for ref in built]

    def _time(self, trials: Sequence[Trial]) -> list[Found]:
        # An earlier process may have evaluated some of the candidates.
        self._baseline(self._selection.samples[0])
        missing = {trial.name: trial.recipe for trial in trials if trial.name not in self._subjects}
        outcomes = zip(missing, self._evaluate(missing, self._selection.samples[0]), strict=True)
        broken = {name: _failed(outcome) for name, outcome in outcomes if isinstance(outcome, Failure)}
        names = [trial.name for trial in trials if trial.name not in broken]
        timed = self._timed(names) if names else Timed(speeds={}, refused={})
        if isinstance(timed, Failure):
            # If the baseline alone cannot be timed either, no trial has caused the failure.
            required(self._timed([]), "the baseline could not be timed")
        found = broken | self._speeds(names, timed)
        return [found[trial.name] for trial in trials]

    def _speeds(self, names: Sequence[CandidateName], timed: Timed | Failure) -> dict[CandidateName, Found]:
        """Return the speeds in `timed`; if timing failed, time each trial alone to find the broken ones."""
        if not isinstance(timed, Failure):
            speeds = {name: Found(speed=speed, waited_s=timed.waited_s) for name, speed in timed.speeds.items()}
            return speeds | {name: Found(failed=f"benchmark: {reason}") for name, reason in timed.refused.items()}
        if len(names) == 1:
            return {names[0]: _failed(timed)}
        return {name: self._speeds([name], self._timed([name]))[name] for name in names}

    def _timed(self, names: Sequence[CandidateName]) -> Timed | Failure:
        baseline = self._subjects[self._job.workload.baseline_name]
        subjects = [self._subjects[name] for name in names]
        with place_benchmarks(self._settings):
            future = steps.time_trials.submit(self._place, self._job, baseline, subjects)
        (timed,) = self._results([future], "benchmark")
        return timed

    def _rank(self, trials: Sequence[Trial]) -> list[Found]:
        futures = [steps.rank_layers.submit(self._place, self._job, trial.recipe) for trial in trials]
        ranked = self._results(futures, "study")
        return [_failed(layers) if isinstance(layers, Failure) else Found(layers=layers) for layers in ranked]

    def _results(self, futures: Sequence[PrefectFuture[R]], stage: str) -> list[R | Failure]:
        """Wait for all stages; return each stage's result or failure."""
        outcomes: list[R | Failure] = []
        for future in futures:
            outcome = wait_for(future, stage)
            outcomes.append(outcome)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        if failures and time.time() >= self._place.deadline:
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


@dataclass(frozen=True)
class Step:
    """Trials to measure for a request, with expected durations; timing the trial afterwards takes ``timing_s``."""

    request: Request
    numbers: tuple[int, ...]
    expected_s: float
    timing_s: float = math.inf


def fitting_steps(
    request: Request, race: Race, answers: Sequence[Answer], running: Collection[Step], left_s: float
) -> list[Step]:
    """Split a request into steps; return the steps that are expected to fit into `left_s`."""
    trials = race.board.numbered(request.numbers)
    costs = {trial.number: expected_s(request, trial, answers) for trial in trials}
    if isinstance(request, Time):
        ends = list(accumulate(costs.values(), initial=_OVERHEAD_TRIALS * max(costs.values())))[1:]
        fitting = sum(end_s <= left_s for end_s in ends)
        return [Step(request, tuple(costs)[:fitting], ends[fitting - 1])] if fitting else []
    busy = {number for step in running for number in step.numbers}
    found = []
    for trial in trials:
        after = {
            type(other): expected_s(other, trial, answers) * (1 + _OVERHEAD_TRIALS if isinstance(other, Time) else 1)
            for other in race.follow_ups(request)
        }
        step = Step(request, (trial.number,), costs[trial.number], after.get(Time, math.inf))
        if trial.number not in busy and step.expected_s + sum(after.values()) <= left_s:
            found.append(step)
    return found


def can_begin(step: Step, running: Collection[Step], at_once: int) -> bool:
    """Return whether a step can begin beside the `running` steps, at most `at_once` in total; timing runs alone."""
    if isinstance(step.request, Time) or step.expected_s > step.timing_s + max(
        (other.expected_s for other in running), default=math.inf
    ):
        return not running
    return len(running) < at_once and not any(isinstance(other.request, Time) for other in running)


def expected_s(request: Request, trial: Trial, answers: Iterable[Answer]) -> float:
    """Estimate the duration in seconds of answering a request about one trial, or of timing one more trial."""
    (kind, samples), durations = _kind(request), dict[str, list[float]]()
    besides = _OVERHEAD_TRIALS if isinstance(request, Time) else 0
    for answer in answers:
        known_kind, known_samples, name, _ = answer.question.split()
        if known_kind == kind and answer.duration_s:  # 0 means unknown
            one_s = answer.duration_s / (answer.together + besides)
            durations.setdefault(CandidateName.parse(name).runtime, []).append(one_s / int(known_samples))
    if trial.runtime not in durations and isinstance(request, Build) and runtime_named(trial.runtime).compiles:
        return _COMPILING_S
    similar = durations.get(trial.runtime) or [one_s for group in durations.values() for one_s in group]
    return samples * max(similar, default=_TIMING_S if isinstance(request, Time) else 0.0)


def question_of(request: Request, trial: Trial) -> str:
    """Return the text that identifies a request about one trial in the journal."""
    kind, samples = _kind(request)
    return f"{kind} {samples} {trial.name} {digest_of(trial.recipe.content())[:16]}"


def _kind(request: Request) -> tuple[str, int]:
    """Return a request's kind and number of samples; the request's duration is proportional to this number."""
    return type(request).__name__.lower(), request.samples if isinstance(request, Screen) else 1
