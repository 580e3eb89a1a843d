"""The steps of a search: which can begin, how long they take, and what a failure says about a trial."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from flows import answers
from flows.answers import Answers, Step, can_begin, expected_s, fitting_steps, question_of
from flows.settings import Settings
from storage.errors import MeasurementError
from storage.journal import Answer
from tasks.search.race import Race
from tasks.search.scoreboard import Scoreboard
from tasks.search.trial import Build, Found, Rank, Request, Screen, Selection, Speed, Time, Timed, Trial
from tasks.values.job import Job
from tasks.values.refs import ArtifactRef, CandidateRef, CheckpointRef, DatasetRef
from tasks.values.results import Comparison, Evaluation, Failure
from tasks.workload.recipe import CandidateName, Recipe
from tests.tasks.decide.test_gate import workload

SPEED = Speed(value=2.0, low=1.9, high=2.1, launches=2)
UNHEARD = Failure(stage="benchmark", error="Prefect's server did not answer: ConnectError", unheard=True)
BROKEN = Failure(stage="benchmark", error="the launch died")


def trial(number: int, runtime: str = "eager") -> Trial:
    recipe = Recipe.model_validate({"name": f"r{number}", "method": "dynamic"})
    return Trial(number=number, recipe=recipe, runtime=runtime, origin="space")


TRIALS = [trial(number) for number in range(1, 5)]
TIME = Time(numbers=(1, 2, 3, 4))


def _stage(outcome: Callable[..., object]) -> SimpleNamespace:
    return SimpleNamespace(submit=outcome)


class Stages:
    """Stages whose futures are their outcomes; ``time`` gives the outcome of timing candidates with these names."""

    def __init__(self, time: Callable[[set[str]], Timed | Failure], build: Failure | None = None) -> None:
        self.timed: list[set[str]] = []
        self.build = _stage(lambda place, job, recipe, runtime: self._ref(recipe, runtime, build))
        self.evaluate = _stage(lambda place, job, ref: self._evaluation(ref))
        self.compare = _stage(lambda place, workload, baseline, good: [Comparison(quality_difference=0.0)])
        self.time_trials = _stage(lambda place, job, baseline, subjects: self._time(time, subjects))

    @staticmethod
    def _ref(recipe: Recipe, runtime: str, failure: Failure | None) -> CandidateRef | Failure:
        if failure and recipe.name != "float":
            return failure
        return CandidateRef(kind="quantized", digest="", recipe=recipe.name, runtime=runtime, size_bytes=1)

    @staticmethod
    def _evaluation(ref: CandidateRef) -> Evaluation:
        return Evaluation(
            recipe=ref.recipe, runtime=ref.runtime, quality_metric="loss", quality=1.0, higher_is_better=False,
            metrics={}, quality_batched=1.0, samples=9, outputs=ArtifactRef(kind="outputs", digest=""),
        )  # fmt: skip

    def _time(self, time: Callable[[set[str]], Timed | Failure], subjects: list[Any]) -> Timed | Failure:
        self.timed.append({subject.candidate.recipe for subject in subjects})
        return time(self.timed[-1])


def answering(monkeypatch: pytest.MonkeyPatch, stages: Stages, deadline: float = math.inf) -> Answers:
    monkeypatch.setattr(answers, "steps", stages)
    monkeypatch.setattr(answers, "wait_for", lambda outcome, stage: outcome)
    dataset = DatasetRef(kind="samples", digest="", splits={"valid": 9, "test": 9})
    job = Job(workload(), dataset, CheckpointRef(kind="checkpoint", digest="", parameters=1))
    return Answers(job, Selection.of(dataset), "absolute", Settings(), "store", deadline)


def speeds(names: set[str]) -> Timed:
    return Timed(speeds={CandidateName(name, "eager"): SPEED for name in names}, refused={})


def test_timing_that_fails_is_repeated_for_each_trial_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(lambda names: BROKEN if "r3" in names else speeds(names))
    found = answering(monkeypatch, stages).find(TIME, TRIALS)
    good, broken = Found(speed=SPEED), Found(failed="benchmark: the launch died")
    assert found == [good, good, broken, good]
    assert stages.timed == [{"r1", "r2", "r3", "r4"}, set(), {"r1"}, {"r2"}, {"r3"}, {"r4"}]


@pytest.mark.parametrize(
    ("failure", "timed", "reason"),
    [
        (UNHEARD, [{"r1", "r2", "r3", "r4"}], "a stage's outcome is unknown: Prefect's server did not answer"),
        (BROKEN, [{"r1", "r2", "r3", "r4"}, set()], "the baseline could not be timed: the launch died"),
    ],
    ids=["dead server", "broken baseline"],
)
def test_timing_that_no_trial_can_have_broken_ends_the_search_and_is_not_repeated(
    failure: Failure, timed: list[set[str]], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = Stages(lambda names: failure)
    with pytest.raises(MeasurementError, match=reason):
        answering(monkeypatch, stages).find(TIME, TRIALS)
    assert stages.timed == timed


def test_a_dead_server_says_nothing_about_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    one = TRIALS[:1]
    for failure, request in ((UNHEARD, Build(numbers=(1,))), (UNHEARD, Screen(numbers=(1,), samples=9))):
        found = answering(monkeypatch, Stages(speeds, build=failure))
        with pytest.raises(MeasurementError, match="Prefect's server did not answer"):
            found.find(request, one)
    failed = answering(monkeypatch, Stages(speeds, build=Failure(stage="build", error="no kernel")))
    assert failed.find(Build(numbers=(1,)), one) == [Found(failed="build: no kernel")]


def test_a_stage_that_fails_after_the_deadline_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(lambda names: BROKEN, build=BROKEN)
    late = answering(monkeypatch, stages, deadline=time.time() - 1)
    assert late.find(Build(numbers=(1, 2)), TRIALS[:2]) == [None, None]
    assert late.find(Screen(numbers=(1,), samples=9), TRIALS[:1]) == [None]
    assert late.find(TIME, TRIALS) == [None] * 4
    assert stages.timed == []


def answer(request: Request, duration_s: float, runtime: str = "eager", together: int = 1) -> Answer:
    question = question_of(request, trial(9, runtime))
    return Answer(question=question, value={}, cost_s=0.1, duration_s=duration_s, together=together)


def fitting(request: Request, *known: Answer, running: tuple[Step, ...] = (), left_s: float = 10.0) -> list[Step]:
    return fitting_steps(
        request, Race(Scoreboard("fastest", 1.0, (10,), TRIALS), lambda trial: ()), known, running, left_s
    )


BUILD, PAIR = Build(numbers=(1, 2)), Time(numbers=(1, 2))


def test_a_step_builds_one_trial_and_times_as_many_as_fit() -> None:
    def numbers(request: Request, *known: Answer, left_s: float = 30.0) -> list[object]:
        return [step.numbers for step in fitting(request, *known, left_s=left_s)]

    assert numbers(BUILD) == [(1,), (2,)]
    assert numbers(PAIR, left_s=12.0) == [(1, 2)]
    assert numbers(PAIR, answer(PAIR, 10.0), left_s=10.0) == [(1,)]
    assert numbers(PAIR, answer(PAIR, 11.0), left_s=10.0) == []
    assert numbers(BUILD, answer(BUILD, 31.0)) == []


def test_timing_runs_alone_and_no_trial_is_in_two_steps() -> None:
    first, third = (Step(Build(numbers=(number,)), (number,), 1.0) for number in (1, 3))
    timing = Step(PAIR, (1, 2), 1.0)
    assert can_begin(timing, (), at_once=2)
    assert not can_begin(timing, (third,), at_once=2)
    assert not can_begin(first, (timing,), at_once=2)
    assert can_begin(first, (third,), at_once=2)
    assert not can_begin(first, (third,), at_once=1)
    assert [step.numbers for step in fitting(BUILD, running=(first,), left_s=30.0)] == [(2,)]


@pytest.mark.parametrize(("left_s", "fits"), [(16.9, False), (17.1, True)])
def test_a_build_begins_only_if_the_time_suffices_to_evaluate_and_time_its_trial(left_s: float, fits: bool) -> None:
    screen = Screen(numbers=(1,), samples=10)
    known = [answer(BUILD, 3.0), answer(screen, 4.0), answer(PAIR, 16.0, together=4)]
    assert bool(fitting(Build(numbers=(1,)), *known, left_s=left_s)) == fits


def test_the_highest_cost_in_the_same_runtime_is_expected() -> None:
    known = [answer(BUILD, 2.0), answer(BUILD, 3.0), answer(BUILD, 90.0, "aot-inductor"), answer(PAIR, 500.0)]
    assert expected_s(BUILD, trial(1), known) == 3.0
    assert expected_s(BUILD, trial(1, "aot-inductor"), known) == 90.0
    assert expected_s(BUILD, trial(1, "openvino"), known[:2]) == 3.0
    assert expected_s(Rank(numbers=(1,)), trial(1), known) == 0.0


def test_timing_one_more_trial_costs_a_part_of_what_timing_one_alone_costs() -> None:
    alone, eight = answer(PAIR, 10.0), answer(PAIR, 24.0, together=8)
    assert expected_s(PAIR, trial(1), [alone]) == expected_s(PAIR, trial(1), [eight]) == 2.0
    (step,) = fitting(PAIR, eight, left_s=99.0)
    assert step.expected_s == 12.0


def test_a_question_changes_with_the_recipe_and_the_samples() -> None:
    renamed = trial(2).model_copy(update={"recipe": trial(2).recipe.model_copy(update={"engine": "onednn"})})
    few, many = (Screen(numbers=(1,), samples=samples) for samples in (10, 40))
    questions = {question_of(one, other) for one in (few, many, BUILD) for other in (trial(2), renamed)}
    assert len(questions) == 6
