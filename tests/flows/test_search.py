"""The driver of a search: what it asks again after a kill, what it knows the next night, and when its budget ends it.

The race is the real one; only the measurements are simulated. `test_search_recipes.py` measures.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.request import SearchResult
from flows.search import Search
from storage.errors import MeasurementError
from storage.journal import Journal
from tasks.search.race import Race
from tasks.search.scoreboard import Scoreboard
from tasks.search.trial import Build, Drop, Found, Rank, RankedLayer, Request, Screen, Speed, Time, Trial
from tasks.workload.gate import Goal
from tasks.workload.recipe import Recipe

LAYERS = tuple(RankedLayer(module=name, type="Linear", sqnr_db=20.0, time_share=0.1) for name in "abcdef")


@dataclass(frozen=True)
class Truth:
    """A trial's true loss, its speed, and whether its build fails; each layer in float takes a part of both."""

    loss: float
    speed: float
    breaks: bool


class Killed(BaseException):
    """The process is gone."""


@dataclass
class World:
    """Trials whose measurements are simulated, and every question that was asked."""

    truths: list[Truth]
    lives: int = 10**9  # number of requests until the process is killed
    asked: list[tuple[str, int, str]] = field(default_factory=list)

    def find(self, request: Request, trials: Sequence[Trial]) -> list[Found]:
        if self.lives == 0:
            raise Killed
        self.lives -= 1
        samples = request.samples if isinstance(request, Screen) else 0
        self.asked += [(type(request).__name__, samples, str(trial.name)) for trial in trials]
        return [self._found(request, trial) for trial in trials]

    def _found(self, request: Request, trial: Trial) -> Found:
        truth, kept = self.truths[int(trial.recipe.name[1])], len(trial.recipe.exclude)
        if truth.breaks:
            return Found(failed="build: it breaks")
        match request:
            case Build():
                return Found(size_bytes=100 + kept)
            case Screen(samples=samples):
                loss = truth.loss * (1 - kept / len(LAYERS))
                return Found(drop=Drop(value=loss, low=loss - 1 / samples, high=loss + 1 / samples, samples=samples))
            case Time():
                speed = truth.speed * (1 - kept / 20)
                return Found(speed=Speed(value=speed, low=speed * 0.98, high=speed * 1.02, launches=2))
            case Rank():
                return Found(layers=LAYERS)


def search(world: World, store: str, budget_s: float = 1e9, at_once: int = 1) -> Search:
    """A search of simulated trials, as a new process begins it."""
    recipes = [Recipe.model_validate({"name": f"r{n}", "method": "dynamic"}) for n in range(len(world.truths))]
    trials = [
        Trial(number=number, recipe=recipe, runtime="torchscript", origin="space")
        for number, recipe in enumerate(recipes, start=1)
    ]
    race = Race(Scoreboard("fastest", 1.0, (4, 64), trials), lambda trial: [], batch=4)
    journal = Journal.read(store, "demo", "a" * 64)
    return Search(
        workload="demo",
        goal=Goal("fastest", 1.0, "absolute"),
        finalists=2,
        race=race,
        journal=journal,
        find=world.find,
        split="valid",
        fingerprint="f" * 64,
        budget_s=budget_s,
        deadline=time.time() + budget_s - journal.spent_s,
        at_once=at_once,
        report=lambda line: None,
    )


def names(result: SearchResult) -> list[str]:
    return [str(trial.name) for trial in result.finalists]


TRUTHS = st.builds(Truth, st.floats(0.0, 3.0), st.floats(0.5, 4.0), st.booleans())


@settings(max_examples=20)  # each example writes files
@given(st.lists(TRUTHS, min_size=1, max_size=5), st.lists(st.integers(0, 6), max_size=3))
def test_a_search_that_was_killed_anywhere_resumes_and_ends_like_an_uninterrupted_one(
    truths: list[Truth], kills: list[int]
) -> None:
    with TemporaryDirectory() as store:
        whole = World(truths)
        expected = search(whole, store).run()
    with TemporaryDirectory() as store:
        asked = []
        for lives in kills:
            world = World(truths, lives)
            with suppress(Killed):
                search(world, store).run()
            asked += world.asked
        last = World(truths)
        result = search(last, store).run()
        assert names(result) == names(expected)
        # Nothing is asked twice, although many processes asked.
        assert asked + last.asked == whole.asked
        assert [trial.model_copy(update={"cost_s": 0.0, "known": False}) for trial in result.trials] == [
            trial.model_copy(update={"cost_s": 0.0, "known": False}) for trial in expected.trials
        ]


def test_the_next_night_reuses_every_answer_and_spends_no_time(tmp_path: Path) -> None:
    truths = [Truth(0.1, 2.0, False), Truth(2.0, 3.0, False), Truth(0.1, 1.0, True)]
    first, second = World(truths), World(truths)
    found = search(first, str(tmp_path)).run()
    again = search(second, str(tmp_path)).run()
    assert (second.asked, again.spent_s, names(again)) == ([], 0.0, names(found))
    assert not any(trial.known for trial in found.trials)
    assert all(trial.known and trial.cost_s == 0.0 for trial in again.trials)
    assert again.describe() == (
        "the search spent 0 s of 1000000000 s on 6 trials (6 known from an earlier search) and chose 2 finalists; "
        "no other trial can win"
    )


def test_a_build_that_is_expected_to_exceed_the_budget_keeps_no_other_trial_from_being_timed(tmp_path: Path) -> None:
    world = World([Truth(0.1, 9.0, False), Truth(0.1, 2.0, False)])
    running = search(world, str(tmp_path), budget_s=20.0)
    running.race.board.trials[0] = running.race.board.trials[0].model_copy(update={"runtime": "aot-inductor"})
    result = running.run()
    assert {name for _, _, name in world.asked} == {"r1/torchscript"}
    assert (names(result), result.ended) == (["r1/torchscript"], "the budget ended with 1 trial undecided")
    assert [trial.outcome for trial in result.trials] == ["open", "chosen"]


@dataclass
class CutWorld(World):
    """A world whose builds last until the budget ends."""

    deadline: float = 0.0

    def find(self, request: Request, trials: Sequence[Trial]) -> list[Found | None]:
        super().find(request, trials)
        time.sleep(max(0.0, self.deadline - time.time()))
        return [None] * len(trials)


def test_a_step_that_the_end_of_the_budget_stopped_begins_again_only_with_more_time(tmp_path: Path) -> None:
    for seconds, asked in ((0.5, [("Build", 0, "r0/torchscript")]), (0.1, [])):
        world = CutWorld([Truth(0.1, 2.0, False)], deadline=time.time() + seconds)
        running = search(world, str(tmp_path))
        running.race.board.objective, running.deadline = "smallest", world.deadline
        result = running.run()
        assert world.asked == asked
        assert (result.ended, result.undecided) == ("the budget ended with 1 trial undecided", 1)
        assert (result.trials[0].outcome, result.trials[0].reason) == ("open", "")
        assert result.spent_s > 0


class Failing(World):
    """A world in which one of the first steps fails, and the others end at the same moment or later."""

    def find(self, request: Request, trials: Sequence[Trial]) -> list[Found]:
        name = trials[0].recipe.name
        if self.first.pop(name, False):
            self.all_run.wait(60)
        if name == "r0":
            raise MeasurementError("the baseline could not be evaluated")
        if name == "r2":
            self.others.wait(60)
        found = super().find(request, trials)
        if name == "r1":
            self.others.set()
        return found


def test_a_step_that_fails_loses_no_answer_of_concurrent_steps(tmp_path: Path) -> None:
    world = Failing([Truth(0.1, 2.0, False)] * 3)
    world.first = dict.fromkeys(("r0", "r1", "r2"), True)  # of the steps, none after these waits for the others
    world.all_run, world.others = threading.Barrier(3), threading.Event()
    with pytest.raises(MeasurementError, match="the baseline could not be evaluated"):
        search(world, str(tmp_path), at_once=3).run()
    journal = Journal.read(tmp_path, "demo", "a" * 64)
    assert {answer.question.split()[2] for answer in journal.answers()} == {"r1/torchscript", "r2/torchscript"}
    assert journal.in_progress


@settings(max_examples=20)  # each example writes files
@given(st.lists(TRUTHS, min_size=1, max_size=5), st.integers(2, 4))
def test_a_search_with_several_workers_repeats_no_question_and_finds_the_same_as_one_worker(
    truths: list[Truth], at_once: int
) -> None:
    alone, together = World(truths), World(truths)
    with TemporaryDirectory() as store:
        expected = search(alone, store).run()
    with TemporaryDirectory() as store:
        result = search(together, store, at_once=at_once).run()
    assert len(set(together.asked)) == len(together.asked)
    assert [trial.speed for trial in result.finalists[:1]] == [trial.speed for trial in expected.finalists[:1]]
