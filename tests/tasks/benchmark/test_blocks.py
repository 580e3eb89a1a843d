"""Blocks of calls: how many, how often, and without the garbage collector."""

from __future__ import annotations

import gc
import time

import pytest

from tasks.benchmark.blocks import calls_for_block, time_block, time_single_calls, warm_up, warm_up_and_plan


class Counter:
    """A call that takes at least `seconds` and counts itself."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.calls, self.seconds, self.collecting = 0, seconds, False

    def __call__(self) -> None:
        self.calls += 1
        self.collecting = self.collecting or gc.isenabled()
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass


def test_block_makes_exactly_its_calls_without_collecting_garbage() -> None:
    counter = Counter()
    assert time_block(counter, 17) > 0
    assert counter.calls == 17
    assert not counter.collecting
    assert gc.isenabled()


def test_collector_is_on_again_after_a_failing_call() -> None:
    with pytest.raises(ZeroDivisionError):
        time_block(lambda: 1 // 0, 1)
    assert gc.isenabled()


@pytest.mark.parametrize("guess_s", [0.02, 10.0])
def test_slow_call_needs_one_call_a_block(guess_s: float) -> None:
    assert calls_for_block(Counter(0.02), 0.01, guess_s) == 1


@pytest.mark.parametrize("guess_s", [10.0, 0.005, 0.001])
def test_fast_calls_are_repeated_until_the_block_is_long_enough(guess_s: float) -> None:
    calls = calls_for_block(Counter(0.001), 0.02, guess_s)
    # A call lasts at least 1 ms, so 22 calls would always do; a disturbed call may make it fewer.
    assert 2 <= calls <= 23


@pytest.mark.parametrize(("least_calls", "least_s"), [(25, 0.0), (1, 0.03), (0, 0.0)])
def test_warm_up_reaches_both_minima_and_tells_how_long_a_call_takes(least_calls: int, least_s: float) -> None:
    counter = Counter(0.001)
    began = time.perf_counter()
    call_s = warm_up(counter, least_calls, least_s)
    elapsed = time.perf_counter() - began
    assert counter.calls >= max(1, least_calls)
    assert elapsed >= least_s
    assert 0.001 <= call_s <= elapsed / counter.calls


@pytest.mark.parametrize(("least_calls", "least_s"), [(25, 0.0), (1, 0.2)])
def test_planning_is_part_of_the_warm_up(least_calls: int, least_s: float) -> None:
    counter = Counter(0.001)
    began = time.perf_counter()
    calls = warm_up_and_plan(counter, least_calls, least_s, 0.02)
    assert counter.calls >= least_calls
    assert time.perf_counter() - began >= least_s
    assert 2 <= calls <= 23


def test_single_calls_end_with_their_number_or_their_time() -> None:
    assert len(time_single_calls(Counter(), 50, 60.0)) == 50
    assert len(time_single_calls(Counter(0.002), 1000, 0.0)) == 1
