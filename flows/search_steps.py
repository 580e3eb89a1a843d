"""The steps of a search: what each step measures, and how long the step is expected to take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from storage.digest import digest_of
from storage.journal import Answer
from tasks.extensions import RUNTIMES
from tasks.search.trial import Build, Request, Screen, Time, Trial

_COMPILING_S = 30.0  # expected duration of the first build with a runtime that compiles
_BESIDES = 4  # starting the launches, and timing the baseline and its copy, takes as long as timing about four trials


@dataclass(frozen=True)
class Step:
    """Trials to measure for a request; ``expected_s`` is the expected duration in seconds."""

    request: Request
    numbers: tuple[int, ...]
    expected_s: float


def fitting_steps(
    request: Request,
    trials: Sequence[Trial],
    answers: Sequence[Answer],
    running: Collection[Step],
    *,
    at_once: int,
    left_s: float,
) -> list[Step]:
    """Split a request about `trials` into steps; return the steps that can begin and are expected to fit into `left_s`.

    Each step measures one trial, so that no worker is idle while another worker compiles. Only timing steps measure
    several trials, and each timing step runs alone. At most `at_once` steps run at the same time.
    """
    costs = {trial.number: expected_s(request, trial, answers) for trial in trials}
    if isinstance(request, Time):
        ends = list(accumulate(costs.values(), initial=_BESIDES * max(costs.values())))[1:]
        fitting = sum(end_s <= left_s for end_s in ends)
        return [Step(request, tuple(costs)[:fitting], ends[fitting - 1])] if fitting and not running else []
    if len(running) >= at_once:
        return []
    busy = {number for step in running for number in step.numbers}
    return [
        Step(request, (number,), cost_s) for number, cost_s in costs.items() if number not in busy and cost_s <= left_s
    ]


def expected_s(request: Request, trial: Trial, answers: Iterable[Answer]) -> float:
    """Estimate the cost in seconds of answering a request about one trial, or of timing one more trial.

    The estimate is based on the highest cost of similar answers, preferably of answers for the same runtime. For the
    first build with a runtime that compiles, the estimate is `_COMPILING_S`.
    """
    (kind, samples), costs = _kind(request), dict[str, list[float]]()
    besides = _BESIDES if isinstance(request, Time) else 0
    for answer in answers:
        known_kind, known_samples, name, _ = answer.question.split()
        if known_kind == kind:
            cost_s = answer.cost_s * answer.together / (answer.together + besides)
            costs.setdefault(name.partition("/")[2], []).append(cost_s / int(known_samples))
    if trial.runtime not in costs and isinstance(request, Build) and RUNTIMES[trial.runtime].compiles:
        return _COMPILING_S
    similar = costs.get(trial.runtime) or [cost for group in costs.values() for cost in group]
    return samples * max(similar, default=0.0)


def question_of(request: Request, trial: Trial) -> str:
    """Return the text that identifies a request about one trial in the journal.

    The text includes the recipe's digest, because a user may change a recipe but keep its name.
    """
    kind, samples = _kind(request)
    return f"{kind} {samples} {trial.name} {digest_of(trial.recipe.content())[:16]}"


def _kind(request: Request) -> tuple[str, int]:
    """Return a request's kind and number of samples; the request's cost is proportional to this number."""
    return type(request).__name__.lower(), request.samples if isinstance(request, Screen) else 1
