"""The search for the highest rate, and what counts as the generator's fault."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.benchmark.capacity_fleet import Fleet
from tasks.benchmark.capacity_server import Probe, generator_limit, highest_rate, offer


def probe(rate: float, slowest_s: float, fastest_s: float = 1.0) -> Probe:
    """A queue that grows from the first request, which waits for no other, to the last."""
    return Probe(rate, np.linspace(fastest_s, slowest_s, 100), np.zeros(100), 0.0)


@given(st.floats(0.02, 1.0), st.floats(0.02, 1.0), st.floats(10, 1e6))
def test_the_highest_rate_that_passes_is_found_from_any_guess(true: float, guess: float, ceiling: float) -> None:
    tried: list[float] = []

    def attempt(rate: float) -> Probe:
        tried.append(rate)
        return probe(rate, 1.0 if rate <= true * ceiling else 3.0)

    found = highest_rate(attempt, 2.0, guess * ceiling, ceiling)
    assert found is not None
    assert true * ceiling / 1.02 <= found.rate <= true * ceiling * (1 + 1e-9)
    assert max(tried) <= ceiling
    assert len(tried) <= 16


@pytest.mark.parametrize(("fastest_s", "most"), [(1.0, 9), (2.5, 1)], ids=["some answers", "no answer"])
def test_a_subject_that_is_never_fast_enough_has_no_rate_and_is_left_at_once_if_no_answer_is_in_time(
    fastest_s: float, most: int
) -> None:
    tried: list[float] = []

    def attempt(rate: float) -> Probe:
        tried.append(rate)
        return probe(rate, 3.0, fastest_s)

    assert highest_rate(attempt, 2.0, 50.0, 100.0) is None
    assert len(tried) <= most


def test_a_rate_passes_if_one_request_in_a_hundred_is_late() -> None:
    latency_s = np.full(1000, 1.0)
    latency_s[:9] = 9.0
    assert Probe(1.0, latency_s, latency_s, 0.0).is_within(1.0)
    latency_s[:11] = 9.0
    assert not Probe(1.0, latency_s, latency_s, 0.0).is_within(1.0)


@pytest.mark.parametrize(
    ("late_s", "busy", "said"),
    [(0.0009, 0.5, ""), (0.0011, 0.5, "1.1 ms late"), (0.0009, 0.81, "busy 81% of the time")],
)
def test_a_generator_is_the_limit_if_it_is_late_or_busy(late_s: float, busy: float, said: str) -> None:
    limit = generator_limit(np.full(100, late_s), busy, 0.01)
    assert bool(limit) == bool(said)
    assert said in limit


class _Recorded(Fleet):
    """Fleet without workers, whose requests are served at once; ``collects`` says whether Python collected garbage."""

    def __init__(self, count: int) -> None:
        self.finished_s, self.collects = np.zeros(count), True

    def open(self) -> float:
        self.collects = gc.isenabled()
        return time.monotonic()

    def put(self, numbers: bytes) -> None:
        self.finished_s[np.frombuffer(numbers, dtype=np.int64)] = time.monotonic()

    def close(self) -> None:
        pass


def test_garbage_is_collected_before_the_first_request_is_due() -> None:
    fleet = _Recorded(20)
    sent = offer(fleet, np.ones(20), 1000.0)
    assert not fleet.collects
    assert gc.isenabled()
    assert (sent.lag_s >= 0).all()
    assert (sent.latency_s >= sent.lag_s).all()
