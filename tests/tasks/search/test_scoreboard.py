"""The scoreboard: outcomes follow from the bounds, and measurements of earlier runs cost nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.search.scoreboard import Scoreboard
from tasks.search.trial import Drop, Found, Speed
from tasks.workload.gate import Objective
from tests.tasks.search.simulated import RUNTIME, SAMPLES, Truth, World

BOUND = 1.0


def board_of(trials: int, objective: Objective = "fastest", **bounds: Any) -> Scoreboard:
    world = World([Truth(0.0, 0.0, 1.0, 100, (1.0,), (0.1,))] * trials)
    return Scoreboard(objective, BOUND, SAMPLES, world.trials(), **bounds)


def settled(board: Scoreboard) -> list[tuple[str, str]]:
    board.settle(lambda trial: trial.speed is None)
    return [(trial.outcome, trial.reason) for trial in board.trials]


def speed_of(low: float, high: float) -> Speed:
    return Speed(value=(low + high) / 2, low=low, high=high, launches=2)


def test_the_passing_trial_whose_speed_is_certain_bounds_the_others() -> None:
    board = board_of(3)
    for number, low, high, most in ((1, 1.0, 3.0, 0.0), (2, 1.8, 2.0, 0.0), (3, 1.2, 1.7, 1.5)):
        drop = Drop(value=most / 2, low=0.0, high=most, samples=16)
        board.record(number, Found(size_bytes=1, drop=drop, speed=speed_of(low, high)))
    assert settled(board) == [("passing", ""), ("passing", ""), ("dropped", f"cannot be better than r2/{RUNTIME}")]
    best, second = board.finalists(2)
    assert (best.number, second.number, best.outcome) == (1, 2, "chosen")
    assert [trial.outcome for trial in board.results(1)] == ["chosen", "passing", "dropped"]


@pytest.mark.parametrize(("loss", "outcome"), [(0.9, "open"), (1.1, "failed")])
def test_a_split_without_further_samples_decides_by_the_estimate(loss: float, outcome: str) -> None:
    board, drop = board_of(1), Drop(value=loss, low=0.5, high=1.5, samples=20)
    board.record(1, Found(size_bytes=1, drop=drop, speed=speed_of(1, 1)))
    assert settled(board) == [("open", "")]
    assert board.next_samples(board.trials[0]) == 64
    board.record(1, Found(drop=drop))
    assert board.trials[0].outcome == outcome
    assert (settled(board)[0][0] == "passing") == (outcome == "open")


def test_a_trial_that_exceeds_a_bound_on_size_or_speed_is_dropped_and_cannot_be_repaired() -> None:
    board = board_of(3, min_speedup=2.0, max_size_bytes=50)
    drop = Drop(value=2.0, low=1.5, high=2.5, samples=16)
    board.record(1, Found(size_bytes=51))
    board.record(2, Found(size_bytes=50, speed=speed_of(1.0, 1.9)))
    board.record(3, Found(size_bytes=50, drop=drop, speed=speed_of(1.0, 2.1)))
    outcomes = settled(board)
    assert [outcome for outcome, _ in outcomes] == ["dropped", "dropped", "failed"]
    assert [reason for _, reason in outcomes[:2]] == [
        "51 bytes are more than 50",
        "at most 1.9 times as fast as the baseline, and 2 is required",
    ]
    assert [board.is_repairable(trial) for trial in board.trials] == [False, False, True]


def test_only_measurements_of_this_run_cost_and_a_trial_is_reused_if_all_its_measurements_are() -> None:
    board = board_of(2)
    board.record(1, Found(size_bytes=1), known=True)
    board.record(2, Found(size_bytes=1), known=True)
    assert [trial.known for trial in board.trials] == [True, True]
    board.record(2, Found(drop=Drop(value=0, low=0, high=0, samples=16)), cost_s=2.5)
    assert [(trial.known, trial.cost_s) for trial in board.trials] == [(True, 0.0), (False, 2.5)]
