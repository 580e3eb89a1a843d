"""The race on simulated trials: what it chooses, and what it asks for."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.search.race import Race
from tasks.search.scoreboard import Scoreboard
from tasks.search.trial import Build, Drop, Found, Rank, Screen, Speed, Time, Trial
from tasks.workload.gate import Objective
from tests.tasks.search.simulated import RUNTIME, SAMPLES, Truth, World, ask, truths

BOUND = 1.0
objectives = st.sampled_from(["fastest", "smallest"])
worlds = st.builds(World, st.lists(truths, min_size=1, max_size=12), st.floats(0, 1), st.integers(0, 99))


def race_of(
    world: World,
    objective: Objective = "fastest",
    min_speedup: float | None = None,
    max_size_bytes: float | None = None,
    **settings: Any,
) -> Race:
    board = Scoreboard(objective, BOUND, SAMPLES, world.trials(), min_speedup, max_size_bytes)
    return Race(board, **{"variants": world.variants, **settings})


def objective_of(world: World, trial: Trial, objective: Objective) -> float:
    _, speed, size = world.truth(trial)
    return -size if objective == "smallest" else speed


def best_possible(world: World, objective: Objective, repairs: bool) -> float | None:
    """The best objective of all trials that pass, found by trying everything."""
    found = []
    for number, truth in enumerate(world.truths, start=1):
        choices = [(truth.loss, 0)]
        if repairs:
            choices.append((truth.variant_loss, 0))
            base = min(truth.loss, truth.variant_loss)
            left = [1 - sum(truth.relief[:kept]) / sum(truth.relief) for kept in range(truth.most + 1)]
            choices += [(base * share, kept) for kept, share in enumerate(left)]
        passing = [kept for loss, kept in choices if loss <= BOUND]
        if passing:
            recipe = world.trials()[number - 1].recipe
            kept = (*recipe.exclude, *(f"layer{index}" for index in range(min(passing))))
            trial = world.trials()[number - 1].model_copy(
                update={"recipe": recipe.model_copy(update={"exclude": kept})}
            )
            found.append(objective_of(world, trial, objective))
    return max(found, default=None)


@given(world=worlds, objective=objectives, repairs=st.booleans())
def test_without_noise_the_best_of_all_trials_and_repairs_wins(
    world: World, objective: Objective, repairs: bool
) -> None:
    world = replace(world, noise=0.0)
    race = race_of(world, objective, **({} if repairs else {"keep_float": False, "variants": lambda trial: []}))
    world.run(race)
    best = race.board.best()
    expected = best_possible(world, objective, repairs)
    assert (None if best is None else objective_of(world, best, objective)) == pytest.approx(expected)


@given(
    world=worlds, objective=objectives, slowest=st.none() | st.floats(0.5, 2), largest=st.none() | st.integers(1, 999)
)
def test_a_race_ends_and_asks_nothing_twice(
    world: World, objective: Objective, slowest: float | None, largest: int | None
) -> None:
    race = race_of(world, objective, min_speedup=slowest, max_size_bytes=largest)
    world.run(race)
    assert ask(race) is None
    assert len(set(world.asked)) == len(world.asked)
    assert all(trial.outcome != "open" for trial in race.board.trials)
    assert [trial.number for trial in race.board.trials] == list(range(1, len(race.board.trials) + 1))
    names = [str(trial.name) for trial in race.board.trials]
    assert len(set(names)) == len(names)


@given(world=worlds, objective=objectives, data=st.data())
def test_a_race_whose_trials_are_set_aside_at_any_time_ends_and_asks_nothing_more_about_them(
    world: World, objective: Objective, data: st.DataObject
) -> None:
    race, aside = race_of(world, objective), set[int]()
    while requests := race.requests():
        numbers = [number for request in requests for number in request.numbers]
        assert aside.isdisjoint(numbers)
        if data.draw(st.booleans()):
            aside |= set(chosen := data.draw(st.lists(st.sampled_from(numbers), min_size=1)))
            race.set_aside(chosen)
        else:
            world.answer(race, data.draw(st.sampled_from(requests)))
    assert len(set(world.asked)) == len(world.asked)
    assert {trial.number for trial in race.board.trials if trial.outcome == "open"} <= aside
    assert not race.undecided() or aside


@given(
    world=worlds, objective=objectives, slowest=st.none() | st.floats(0.5, 2), largest=st.none() | st.integers(1, 999)
)
def test_finalists_satisfy_every_bound_and_nothing_that_was_dropped_is_truly_better(
    world: World, objective: Objective, slowest: float | None, largest: int | None
) -> None:
    race = race_of(world, objective, min_speedup=slowest, max_size_bytes=largest)
    world.run(race)
    finalists = race.board.finalists(3)
    assert [trial.outcome for trial in finalists] == ["chosen"] * len(finalists)
    assert [trial.outcome for trial in race.board.results(3)].count("chosen") == len(finalists)
    for trial in finalists:
        loss, speed, size = world.truth(trial)
        assert trial.drop
        assert trial.drop.value <= BOUND
        assert trial.drop.low <= loss + 1e-9
        assert largest is None or size <= largest
        assert slowest is None or trial.speed is None or trial.speed.high >= slowest
    passing = [trial for trial in race.board.results(0) if trial.outcome == "passing"]
    for trial in race.board.trials:
        loss, speed, size = world.truth(trial)
        is_possible = (largest is None or size <= largest) and (slowest is None or speed >= slowest)
        if trial.outcome == "dropped" and is_possible and loss <= BOUND:
            assert max(objective_of(world, other, objective) for other in passing) >= objective_of(
                world, trial, objective
            )


@given(truth=truths, loss=st.floats(1.5, 4), bound=st.floats(0.01, 1.4))
@example(Truth(2.0, 3.0, 2.0, 100, (1.0,) * 9, (0.01,) * 9), 2.0, 0.99)
def test_a_repair_finds_the_fewest_layers_in_float_with_which_a_trial_passes(
    truth: Truth, loss: float, bound: float
) -> None:
    world = World([replace(truth, loss=loss, variant_loss=5.0)])
    race = race_of(world)
    race.board.bound = bound
    world.run(race)
    left = [loss * (1 - sum(truth.relief[:kept]) / sum(truth.relief)) for kept in range(truth.most + 1)]
    fewest = next((kept for kept, lost in enumerate(left) if lost <= bound), None)
    best = race.board.best()
    assert (best and len(best.recipe.exclude) - 1) == fewest
    assert best is None or (best.origin, best.parent) == ("kept-float", f"r1/{RUNTIME}")


@given(world=worlds, objective=objectives, answers=st.integers(0, 60))
def test_a_race_that_is_played_again_goes_on_where_it_stopped(world: World, objective: Objective, answers: int) -> None:
    uninterrupted = race_of(world, objective)
    world.run(uninterrupted)
    stopped = replace(world, asked=[])
    stopped.run(race_of(stopped, objective), most=answers)
    resumed, again = race_of(world, objective), replace(world, asked=[])
    while request := ask(resumed):
        for number in request.numbers:
            again.answer_one(resumed, request, number)
    assert resumed.board.trials == uninterrupted.board.trials
    assert again.asked[: len(stopped.asked)] == stopped.asked


def _world(*trials: tuple[float, float], noise: float = 0.0) -> World:
    return World([Truth(loss, loss, speed, 100, (1.0, 1.0), (0.1, 0.1)) for loss, speed in trials], noise)


def test_new_trials_are_built_screened_and_timed_in_batches() -> None:
    world = _world(*[(0.5, 1.0 + number / 10) for number in range(5)])
    race, requests = race_of(world, batch=3), []
    while request := ask(race):
        requests.append(request)
        world.answer(race, request)
    first, second = (1, 2, 3), (4, 5)
    assert requests == [
        Build(numbers=first), Screen(numbers=first, samples=16), Time(numbers=first),
        Build(numbers=second), Screen(numbers=second, samples=16), Time(numbers=second),
    ]  # fmt: skip


def test_a_failed_trial_that_is_slower_than_the_best_is_repaired_after_all_other_trials() -> None:
    world = _world((2.0, 1.5), (0.5, 1.6), (0.5, 1.0), noise=0.4)
    race, kinds = race_of(world, batch=2, variants=lambda trial: []), []
    while request := ask(race):
        kinds.append((type(request).__name__, request.numbers))
        world.answer(race, request)
    assert ("Rank", (1,)) in kinds
    assert kinds.index(("Build", (3,))) < kinds.index(("Rank", (1,)))


def test_size_needs_no_timing_unless_the_gate_requires_speed() -> None:
    for slowest, timed in ((None, set()), (1.2, {"Time"})):
        world = _world((0, 1), (0, 2))
        world.run(race_of(world, "smallest", min_speedup=slowest))
        assert {kind for kind, _, _ in world.asked} - {"Build", "Screen"} == timed


def test_a_loss_is_screened_on_more_samples_only_while_it_is_undecided_and_can_win() -> None:
    race = race_of(_world((0, 1), (0, 1), (0, 1)), keep_float=False, variants=lambda trial: [])
    drops = {1: (0.2, 0.8), 2: (0.5, 1.5), 3: (0.5, 1.5)}
    for number, (low, high) in drops.items():
        race.record(number, Found(size_bytes=1))
        race.record(number, Found(drop=Drop(value=(low + high) / 2, low=low, high=high, samples=16)))
    for number, speed in ((1, 1.5), (2, 2.0), (3, 1.2)):
        race.record(number, Found(speed=Speed(value=speed, low=speed - 0.1, high=speed + 0.1, launches=2)))
    assert [trial.outcome for trial in race.board.trials] == ["passing", "open", "dropped"]
    assert race.board.trials[2].reason == f"cannot be better than r1/{RUNTIME}"
    assert ask(race) == Screen(numbers=(2,), samples=64)
    race.record(2, Found(drop=Drop(value=1.0, low=0.9, high=1.1, samples=64)))
    assert ask(race) == Screen(numbers=(2,), samples=256)
    race.record(2, Found(drop=Drop(value=1.01, low=0.95, high=1.05, samples=256)))
    assert race.board.trials[1].outcome == "failed"
    assert race.board.trials[1].reason == "loses 1.01 (0.95 to 1.05) on 256 samples, and at most 1 is allowed"
    assert ask(race) is None


@settings(max_examples=20)  # each example copies a race
@given(world=worlds, objective=objectives, answers=st.integers(0, 60))
def test_asking_for_undecided_trials_starts_no_measurement(world: World, objective: Objective, answers: int) -> None:
    race = race_of(world, objective)
    world.run(race, most=answers)
    before = copy.deepcopy(replace(race, variants=print))  # a copied method would not be equal
    race.undecided()
    assert replace(race, variants=print) == before
    request = ask(race)
    assert bool(race.undecided()) == (request is not None)


@pytest.mark.parametrize("can_rank", [True, False])
def test_a_repair_ends_when_its_ranking_fails_or_is_set_aside(can_rank: bool) -> None:
    world = _world((2.0, 1.0))
    race = race_of(world, variants=lambda trial: [])
    while not isinstance(request := ask(race), Rank):
        assert request
        world.answer(race, request)
    if can_rank:
        race.set_aside(request.numbers)
    else:
        race.record(1, Found(failed="rank: no graph"))
    assert ask(race) is None
    assert [str(trial.name) for trial in race.undecided()] == [f"r1/{RUNTIME}"] * can_rank
    assert race.board.trials[0].reason.endswith("allowed; rank: no graph") is not can_rank
