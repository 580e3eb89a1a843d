"""The steps of a search: what each step measures, and how long the step is expected to take."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from storage.digest import digest_of
from storage.journal import Answer
from tasks.extensions import RUNTIMES
from tasks.search.trial import Build, Request, Screen, Time, Trial

_COMPILING_S = 30.0  # expected duration of the first build with a runtime that compiles
_TIMING_S = 2.0  # expected duration of timing a trial for the first time
_BESIDES = 4  # starting the launches, and timing the baseline and its copy, takes as long as timing about four trials


@dataclass(frozen=True)
class Step:
    """Trials to measure for a request; ``expected_s`` is the expected duration in seconds."""

    request: Request
    numbers: tuple[int, ...]
    expected_s: float
    timing_s: float = math.inf


def fitting_steps(
    request: Request,
    trials: Sequence[Trial],
    answers: Sequence[Answer],
    running: Collection[Step],
    *,
    left_s: float,
    follow_ups: Sequence[Request] = (),
) -> list[Step]:
    """Split a request about `trials` into steps; return the steps that are expected to fit into `left_s`."""
    costs = {trial.number: expected_s(request, trial, answers) for trial in trials}
    if isinstance(request, Time):
        ends = list(accumulate(costs.values(), initial=_BESIDES * max(costs.values())))[1:]
        fitting = sum(end_s <= left_s for end_s in ends)
        return [Step(request, tuple(costs)[:fitting], ends[fitting - 1])] if fitting else []
    busy = {number for step in running for number in step.numbers}
    found = []
    for trial in trials:
        after = {type(other): _alone_s(other, trial, answers) for other in follow_ups}
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


def _alone_s(request: Request, trial: Trial, answers: Sequence[Answer]) -> float:
    """Estimate the duration in seconds of a request about one trial alone."""
    return expected_s(request, trial, answers) * (1 + _BESIDES if isinstance(request, Time) else 1)


def expected_s(request: Request, trial: Trial, answers: Iterable[Answer]) -> float:
    """Estimate the duration in seconds of answering a request about one trial, or of timing one more trial."""
    (kind, samples), durations = _kind(request), dict[str, list[float]]()
    besides = _BESIDES if isinstance(request, Time) else 0
    for answer in answers:
        known_kind, known_samples, name, _ = answer.question.split()
        if known_kind == kind and answer.duration_s:  # 0 means unknown
            one_s = answer.duration_s / (answer.together + besides)
            durations.setdefault(name.partition("/")[2], []).append(one_s / int(known_samples))
    if trial.runtime not in durations and isinstance(request, Build) and RUNTIMES[trial.runtime].compiles:
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
