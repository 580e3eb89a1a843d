"""Ratios, their intervals, the bounds that decide, and percentiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import ttest_1samp

from tasks.benchmark.statistics import LOOKS, STICKS, Array, Noise, Ratio, Sample, launch_values, percentiles

SECONDS = st.floats(1e-6, 1e2)


def times(shape: tuple[int, int] = (3, 4)) -> st.SearchStrategy[Array]:
    return arrays(np.float64, shape, elements=SECONDS)


def ratio_of(sample: Sample) -> Ratio:
    return Noise.pooled([sample]).interval(sample)


@settings(max_examples=30)
@given(times(), times(), times())
def test_intervals_hold_the_estimate_and_bounds_hold_the_interval(
    candidate: Array, baseline: Array, copy: Array
) -> None:
    sample, aa = Sample.against_two(candidate, baseline, copy), Sample.against_one(copy, baseline)
    noise = Noise.pooled([sample, aa])
    interval, bounds = noise.interval(sample), noise.bounds(sample, aa, 1)
    assert 0 < bounds.low <= interval.low <= interval.value * (1 + 1e-12)
    assert interval.value * (1 - 1e-12) <= interval.high <= bounds.high < np.inf


@settings(max_examples=20)
@given(times(), times(), st.floats(0.01, 100))
def test_faster_candidate_scales_ratio_and_interval(candidate: Array, baseline: Array, factor: float) -> None:
    ratio = ratio_of(Sample.against_one(candidate, baseline))
    scaled = ratio_of(Sample.against_one(candidate / factor, baseline))
    assert scaled.value == pytest.approx(ratio.value * factor, rel=1e-9)
    assert np.log(scaled.high / scaled.low) == pytest.approx(np.log(ratio.high / ratio.low), rel=1e-6, abs=1e-9)


@settings(max_examples=20)
@given(times(), times())
def test_swapping_the_two_inverts_the_estimate(candidate: Array, baseline: Array) -> None:
    there = ratio_of(Sample.against_one(candidate, baseline))
    back = ratio_of(Sample.against_one(baseline, candidate))
    assert there.value * back.value == pytest.approx(1, rel=1e-9)


@settings(max_examples=20)
@given(times())
def test_noise_that_hits_both_alike_cancels(baseline: Array) -> None:
    ratio = ratio_of(Sample.against_one(baseline / 2, baseline))
    assert [ratio.low, ratio.value, ratio.high] == pytest.approx([2, 2, 2])


def test_a_drift_that_is_linear_over_mirrored_rounds_cancels() -> None:
    # A B B A: the machine slows down by 1% with every block.
    slow = 1.01 ** np.arange(4)
    baseline, candidate = np.array([[slow[0], slow[3]]]), np.array([[slow[1], slow[2]]])
    assert Sample.against_one(candidate, baseline).mean == pytest.approx(0, abs=1e-12)


def test_one_disturbed_pair_of_rounds_does_not_move_a_launch() -> None:
    logs = np.zeros((2, 6))
    logs[1, 2] = 9.0
    assert launch_values(logs).tolist() == [0, 0]


def test_a_round_without_a_mirror_stands_for_itself() -> None:
    assert launch_values(np.array([[0.0, 2.0, 5.0]])).tolist() == [3.0]


def test_one_sample_alone_has_students_interval() -> None:
    logs = np.array([0.1, 0.3, 0.2, 0.6])
    sample = Sample(logs, 2.0)
    expected = ttest_1samp(logs, 0).confidence_interval(0.95)
    ratio = ratio_of(sample)
    assert [ratio.low, ratio.high] == pytest.approx([np.exp(expected.low), np.exp(expected.high)])


def test_the_others_steady_a_sample_but_do_not_hide_that_it_is_unsteady() -> None:
    steady, wild = Sample(np.array([0.0, 0.01, 0.02]), 1.5), Sample(np.array([-1.0, 0.0, 1.0]), 1.5)
    others = [Sample(np.array([0.0, 0.1, 0.2]), 1.5) for _ in range(6)]
    alone, together = Noise.pooled([steady]), Noise.pooled([steady, *others])
    assert together.half_width(steady, 0.025) > alone.half_width(steady, 0.025)
    own = float(wild.logs.std(ddof=1))
    assert Noise.pooled([wild, *others]).half_width(wild, 0.025) > 1.96 * own / 3**0.5


def test_a_copy_that_differs_from_the_baseline_widens_the_bounds_by_what_it_shows() -> None:
    rng = np.random.default_rng(0)
    sample, quiet = Sample(1 + rng.normal(0, 0.001, 20), 1.5), Sample(rng.normal(0, 0.001, 20), 2.0)
    biased = Sample(quiet.logs + 0.2, 2.0)
    noise = Noise.pooled([sample, quiet])
    narrow, wide = noise.bounds(sample, quiet, 1), noise.bounds(sample, biased, 1)
    assert np.log(narrow.high / narrow.low) / 2 == pytest.approx(STICKS, rel=0.2)
    assert np.log(wide.high / wide.low) / 2 == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("launches", [2, 3, 8, 40, 100])
def test_bounds_exist_after_any_number_of_launches(launches: int) -> None:
    sample = Sample(np.linspace(0.9, 1.1, launches), 1.5)
    bounds = Noise.pooled([sample]).bounds(sample, sample, 3)
    assert bounds.low < bounds.value < bounds.high


@pytest.mark.parametrize(("between", "within"), [(0.02, 0.02), (0.1, 0.1), (0.01, 0.2)])
def test_interval_covers_the_truth_as_often_as_it_says(between: float, within: float) -> None:
    generator = np.random.default_rng(1)
    covered, tries = 0, 400
    for _ in range(tries):
        launches = int(generator.choice(LOOKS[:4]))
        base, copy, fast = (
            np.exp(generator.normal(0, between, (launches, 1)) + generator.normal(0, within, (launches, 4)))
            for _ in range(3)
        )
        sample = Sample.against_two(fast / 1.5, base, copy)
        ratio = Noise.pooled([sample, Sample.against_one(copy, base)]).interval(sample)
        covered += ratio.low <= 1.5 <= ratio.high
    # Three standard deviations of 400 draws at 95%.
    assert 0.917 <= covered / tries <= 0.99


@pytest.mark.parametrize(
    ("calls", "known"), [(0, (0, 0, 0)), (99, (1, 0, 0)), (100, (1, 1, 0)), (999, (1, 1, 0)), (1000, (1, 1, 1))]
)
def test_percentiles_appear_only_from_enough_calls_on(calls: int, known: tuple[int, int, int]) -> None:
    assert tuple(int(value is not None) for value in percentiles(np.linspace(1, 2, calls))) == known
