"""The steps of a search: which can begin, how long they take, and how the journal names them."""

from __future__ import annotations

import pytest

from flows.search_steps import Step, can_begin, expected_s, fitting_steps, question_of
from storage.journal import Answer
from tasks.search.trial import Build, Rank, Request, Screen, Time, Trial
from tasks.workload.recipe import Recipe

BUILD, TIME = Build(numbers=(1, 2)), Time(numbers=(1, 2))


def trial(number: int, runtime: str = "torchscript") -> Trial:
    recipe = Recipe.model_validate({"name": f"r{number}", "method": "dynamic"})
    return Trial(number=number, recipe=recipe, runtime=runtime, origin="space")


def answer(request: Request, duration_s: float, runtime: str = "torchscript", together: int = 1) -> Answer:
    question = question_of(request, trial(9, runtime))
    return Answer(question=question, value={}, cost_s=0.1, duration_s=duration_s, together=together)


def numbers(request: Request, *answers: Answer, running: tuple[Step, ...] = (), left_s: float = 10.0) -> list[object]:
    trials = [trial(number) for number in request.numbers]
    steps = fitting_steps(request, trials, answers, running, left_s=left_s)
    return [step.numbers for step in steps]


def test_a_step_builds_one_trial_and_times_as_many_as_fit() -> None:
    assert numbers(BUILD) == [(1,), (2,)]
    assert numbers(TIME, left_s=12.0) == [(1, 2)]
    assert numbers(TIME, answer(TIME, 10.0)) == [(1,)]
    assert numbers(TIME, answer(TIME, 11.0)) == []
    assert numbers(BUILD, answer(BUILD, 11.0)) == []


def test_timing_runs_alone_and_no_trial_is_in_two_steps() -> None:
    first, third = (Step(Build(numbers=(number,)), (number,), 1.0) for number in (1, 3))
    timing = Step(TIME, (1, 2), 1.0)
    assert can_begin(timing, (), at_once=2)
    assert not can_begin(timing, (third,), at_once=2)
    assert not can_begin(first, (timing,), at_once=2)
    assert can_begin(first, (third,), at_once=2)
    assert not can_begin(first, (third,), at_once=1)
    assert numbers(BUILD, running=(first,)) == [(2,)]


@pytest.mark.parametrize(("left_s", "fits"), [(16.9, False), (17.1, True)])
def test_a_build_begins_only_if_the_time_suffices_to_evaluate_and_time_its_trial(left_s: float, fits: bool) -> None:
    screen = Screen(numbers=(1,), samples=10)
    known = [answer(BUILD, 3.0), answer(screen, 4.0), answer(TIME, 16.0, together=4)]
    follow_ups = [screen, Time(numbers=(1,))]
    steps = fitting_steps(BUILD, [trial(1)], known, (), left_s=left_s, follow_ups=follow_ups)
    assert bool(steps) == fits


@pytest.mark.parametrize("runtime", ["torchscript", "aot-inductor"])
def test_the_highest_cost_in_the_same_runtime_is_expected(runtime: str) -> None:
    known = [answer(BUILD, 2.0), answer(BUILD, 3.0), answer(BUILD, 90.0, "aot-inductor"), answer(TIME, 500.0)]
    assert expected_s(BUILD, trial(1, runtime), known) == (90.0 if runtime == "aot-inductor" else 3.0)
    assert expected_s(BUILD, trial(1, "openvino"), known[:2]) == 3.0
    assert expected_s(Rank(numbers=(1,)), trial(1), known) == 0.0


def test_timing_one_more_trial_costs_a_part_of_what_timing_one_alone_costs() -> None:
    alone, eight = answer(TIME, 10.0), answer(TIME, 24.0, together=8)
    assert expected_s(TIME, trial(1), [alone]) == expected_s(TIME, trial(1), [eight]) == 2.0
    (step,) = fitting_steps(TIME, [trial(1), trial(2)], [eight], (), left_s=99.0)
    assert step.expected_s == 12.0


def test_a_question_changes_with_the_recipe_and_the_samples() -> None:
    renamed = trial(2).model_copy(update={"recipe": trial(2).recipe.model_copy(update={"engine": "onednn"})})
    few, many = (Screen(numbers=(1,), samples=samples) for samples in (10, 40))
    questions = {question_of(one, other) for one in (few, many, BUILD) for other in (trial(2), renamed)}
    assert len(questions) == 6
