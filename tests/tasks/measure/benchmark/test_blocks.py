"""Blocks of calls: how many, how often, and without the garbage collector."""

from __future__ import annotations

import gc

import pytest

from tasks.measure.benchmark import rounds
from tasks.measure.benchmark.rounds import calls_for_block, time_block, warm_up_and_plan


class Clock:
    """The time of these tests: it stands still, except in calls."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(rounds, "time", made)
    return made


class Counter:
    """A call that takes `seconds` and counts itself."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.calls, self.seconds, self.collecting = clock, 0, seconds, False

    def __call__(self) -> None:
        self.calls += 1
        self.collecting = self.collecting or gc.isenabled()
        self.clock.now += self.seconds


def test_a_block_times_exactly_its_calls_after_an_untimed_lead_in_and_without_collecting_garbage(clock: Clock) -> None:
    counter = Counter(clock, 0.25)
    assert time_block(counter, 17) == 17 * 0.25
    assert counter.calls == 4 + 17
    assert time_block(counter, 1) == 0.25
    assert counter.calls == 4 + 17 + 1 + 1
    assert not counter.collecting
    assert gc.isenabled()


@pytest.mark.parametrize("guess_s", [10.0, 0.005, 0.001])
def test_fast_calls_are_repeated_until_the_block_is_long_enough(guess_s: float, clock: Clock) -> None:
    # 20 calls would do, and a tenth more is made.
    assert calls_for_block(Counter(clock, 0.001), 0.02, guess_s) in (22, 23)


def test_a_call_that_takes_no_time_is_not_repeated_for_ever(clock: Clock) -> None:
    assert calls_for_block(Counter(clock, 1e-9), 0.0001, 1.0) <= 110_001


@pytest.mark.parametrize(("least_calls", "least_s"), [(25, 0.0), (1, 0.2)])
def test_planning_is_part_of_the_warm_up(least_calls: int, least_s: float, clock: Clock) -> None:
    counter = Counter(clock, 0.001)
    assert warm_up_and_plan(counter, least_calls, least_s, 0.02) in (22, 23)
    assert counter.calls >= least_calls
    assert least_s <= clock.now <= least_s + 0.1
