"""Ratios, their intervals, and percentiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tasks.benchmark.statistics import (
    Array,
    bootstrap_medians,
    interval_of_logs,
    median_of_medians,
    percentiles,
    speed_ratio,
)

SECONDS = st.floats(1e-6, 1e2)


def times(shape: tuple[int, int] = (3, 4)) -> st.SearchStrategy[Array]:
    return arrays(np.float64, shape, elements=SECONDS)


@settings(max_examples=20, deadline=None)
@given(times(), times())
def test_interval_holds_the_estimate(candidate: Array, baseline: Array) -> None:
    ratio = speed_ratio(candidate, baseline)
    assert ratio.low <= ratio.value * (1 + 1e-12)
    assert ratio.value <= ratio.high * (1 + 1e-12)


@settings(max_examples=20, deadline=None)
@given(times(), times(), st.floats(0.01, 100))
def test_faster_candidate_scales_ratio_and_interval(candidate: Array, baseline: Array, factor: float) -> None:
    ratio, scaled = speed_ratio(candidate, baseline), speed_ratio(candidate / factor, baseline)
    assert [scaled.value, scaled.low, scaled.high] == pytest.approx(
        [ratio.value * factor, ratio.low * factor, ratio.high * factor], rel=1e-9
    )


@settings(max_examples=20, deadline=None)
@given(times(), times())
def test_swapping_the_two_inverts_the_estimate(candidate: Array, baseline: Array) -> None:
    there, back = speed_ratio(candidate, baseline), speed_ratio(baseline, candidate)
    assert there.value * back.value == pytest.approx(1, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(times())
def test_noise_that_hits_both_alike_cancels(baseline: Array) -> None:
    ratio = speed_ratio(baseline / 2, baseline)
    assert [ratio.low, ratio.value, ratio.high] == pytest.approx([2, 2, 2])


@settings(deadline=None)
@given(times((4, 5)))
def test_resampled_medians_stay_within_the_data(logs: Array) -> None:
    medians = bootstrap_medians(logs, resamples=50)
    assert medians.min() >= logs.min()
    assert medians.max() <= logs.max()


@settings(deadline=None)
@given(times((4, 5)))
def test_equal_data_give_equal_intervals(logs: Array) -> None:
    assert interval_of_logs(logs, 200) == interval_of_logs(logs.copy(), 200)


def test_median_of_medians_is_not_the_overall_median() -> None:
    logs = np.array([[0.0, 0.0, 9.0], [1.0, 1.0, 1.0], [2.0, 5.0, 5.0]])
    assert median_of_medians(logs) == 1.0


def test_one_disturbed_round_does_not_move_the_estimate_and_is_not_dropped() -> None:
    baseline = np.ones((2, 5))
    candidate = np.full((2, 5), 0.5)
    candidate[1, 2] = 50.0
    ratio = speed_ratio(candidate, baseline)
    assert ratio.value == pytest.approx(2)
    assert candidate.max() == 50.0


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        logs = 0.3 + generator.normal(0, 0.005, (5, 1)) + generator.normal(0, 0.02, (5, 8))
        low, high = interval_of_logs(logs, 500)
        covered += low <= 0.3 <= high
    assert covered >= 180


@pytest.mark.parametrize(
    ("calls", "known"), [(0, (0, 0, 0)), (99, (1, 0, 0)), (100, (1, 1, 0)), (999, (1, 1, 0)), (1000, (1, 1, 1))]
)
def test_percentiles_appear_only_from_enough_calls_on(calls: int, known: tuple[int, int, int]) -> None:
    assert tuple(int(value is not None) for value in percentiles(np.linspace(1, 2, calls))) == known
