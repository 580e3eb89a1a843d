"""Intervals for paired differences: they hold what they surround, as often as they say."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq, minimize_scalar
from scipy.signal import lfilter

from tasks.data.paired import (
    _expanded_tail,
    bootstrap_difference,
    resampled_difference,
    score_difference,
    serial_difference,
)

results = arrays(np.float64, st.integers(2, 40), elements=st.floats(-100, 100, allow_nan=False))
counts = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 400)).filter(lambda each: sum(each) > 0)


def answers(gained: int, lost: int, same: int) -> tuple[np.ndarray, np.ndarray]:
    """Right and wrong answers of two classifiers that agree on `same` samples, half of them right."""
    before = [0.0] * gained + [100.0] * lost + [100.0, 0.0] * (same // 2) + [100.0] * (same % 2)
    after = [100.0] * gained + [0.0] * lost + before[gained + lost :]
    return np.array(before), np.array(after)


# Airway hyper-responsiveness of 21 patients before and after: 1 had it before only, 7 after only. Fagerland, Lydersen
# and Laake, "Recommended tests and confidence intervals for paired binomial proportions", Statistics in Medicine 33,
# 2014, give Tango's interval for before - after as -0.517 to -0.026.
def test_the_score_interval_is_the_published_one():
    _, low, high = score_difference(*answers(1, 7, 13))

    assert (round(low, 1), round(high, 1)) == (-51.7, -2.6)


@pytest.mark.parametrize(("gained", "lost", "samples"), [(3, 9, 200), (0, 4, 60), (7, 7, 30), (1, 0, 1024)])
def test_the_ends_are_where_a_score_test_with_the_likeliest_shares_refuses(gained, lost, samples):
    def statistic(difference: float) -> float:
        def unlikely(share: float) -> float:  # share is lost, share + difference gained, the rest is the same
            shares = share + difference, share, 1 - difference - 2 * share
            seen = gained, lost, samples - gained - lost
            return -sum(n * math.log(p) for n, p in zip(seen, shares, strict=True) if n)

        bounds = max(0.0, -difference) + 1e-12, (1 - difference) / 2 - 1e-12
        share = minimize_scalar(unlikely, bounds=bounds, method="bounded", options={"xatol": 1e-14}).x
        return (estimate - difference) / math.sqrt((2 * share + difference - difference**2) / samples)

    estimate, quantile = (gained - lost) / samples, NormalDist().inv_cdf(0.975)
    low = brentq(lambda difference: statistic(difference) - quantile, -0.9, estimate - 1e-6)
    high = brentq(lambda difference: statistic(difference) + quantile, estimate + 1e-6, 0.9)

    found = score_difference(*answers(gained, lost, samples - gained - lost))

    assert found == pytest.approx((100 * estimate, 100 * low, 100 * high), abs=0.01)


@given(counts)
def test_the_score_interval_contains_the_estimate_has_a_width_and_changes_sign_with_the_roles(each):
    gained, lost, same = each
    before, after = answers(*each)

    mean, low, high = score_difference(before, after)

    assert mean == pytest.approx(100 * (gained - lost) / (gained + lost + same))
    assert -100 <= low <= mean <= high <= 100
    assert high - low > 0.1
    assert score_difference(after, before) == pytest.approx((-mean, -high, -low), abs=1e-9)


@pytest.mark.parametrize(("gain", "loss"), [(0.001, 0.002), (0.004, 0.012), (0.05, 0.05)])
def test_the_score_interval_covers_the_true_difference_as_often_as_promised(gain, loss):
    rng = np.random.default_rng(7)
    samples, trials, covered, drawn = 1024, 4000, 0, {}
    for gained, lost, same in rng.multinomial(samples, [gain, loss, 1 - gain - loss], size=trials).tolist():
        key = gained, lost, same
        drawn[key] = drawn.get(key) or score_difference(*answers(*key))
        covered += drawn[key].low <= 100 * (gain - loss) <= drawn[key].high

    assert 0.94 <= covered / trials <= 0.985


def series(rng, words: int, memory: float, share: float) -> np.ndarray:
    """Differences of stretches of 20 words: noise with heavy tails, and a part that fades over `memory` words.

    `share` is the fading part's share in the variance of the means of 100 words.
    """
    stretch, length = 20, words // 20
    noise, kept = rng.standard_t(4, size=length) / math.sqrt(2), math.exp(-stretch / memory)
    fading = lfilter([math.sqrt(1 - kept**2)], [1, -kept], rng.normal(size=length + 500))[500:]
    return noise + math.sqrt(share / (1 - share) * stretch / 100) * fading


def coverage(rng, words: int, memory: float, share: float, interval) -> float:
    trials, covered = 600, 0
    for _ in range(trials):
        differences = series(rng, words, memory, share)
        low, high = interval(np.zeros(len(differences)), differences)[1:]
        covered += low <= 0 <= high
    return covered / trials


@pytest.mark.parametrize("words", [8_000, 40_000])
@pytest.mark.parametrize(("memory", "share"), [(1.0, 0.0), (100.0, 0.35), (300.0, 0.2)])
def test_a_series_with_memory_is_covered_about_as_often_as_promised(words, memory, share):
    assert 0.90 <= coverage(np.random.default_rng(11), words, memory, share, serial_difference) <= 0.985


@given(arrays(np.float64, st.integers(2, 300), elements=st.floats(-20, 20)), st.floats(-5, 5))
def test_the_serial_interval_is_around_the_mean_and_moves_with_it(differences, shift):
    zeros = np.zeros(len(differences))

    mean, low, high = serial_difference(zeros, differences)

    assert mean == pytest.approx(differences.mean(), abs=1e-9)
    assert low <= mean <= high
    assert serial_difference(zeros, differences + shift) == pytest.approx(
        (mean + shift, low + shift, high + shift), abs=1e-6
    )
    assert serial_difference(differences, zeros) == pytest.approx((-mean, -high, -low), abs=1e-9)


def test_ten_equal_blocks_give_students_interval_of_their_means():
    means = np.arange(10.0)

    # 2.262 is the 97.5% quantile with nine degrees of freedom, from the printed tables.
    half = 2.262 * means.std(ddof=1) / math.sqrt(10)

    assert serial_difference(np.zeros(70), np.repeat(means, 7)) == pytest.approx(
        (4.5, 4.5 - half, 4.5 + half), rel=1e-3
    )


@given(results, st.floats(-50, 50))
def test_a_constant_shift_has_an_interval_without_width(result, shift):
    difference = bootstrap_difference(result, result + shift, resamples=50)

    assert difference.mean == pytest.approx(shift, abs=1e-9)
    assert difference.high - difference.low < 1e-6


@given(
    results.flatmap(
        lambda before: st.tuples(st.just(before), arrays(np.float64, len(before), elements=st.floats(0, 9)))
    )
)
def test_the_interval_contains_the_mean_and_changes_sign_with_the_roles(pair):
    before, after = pair

    forward = bootstrap_difference(before, after, resamples=400)

    assert forward.low <= forward.mean + 1e-9
    assert forward.mean <= forward.high + 1e-9
    assert bootstrap_difference(after, before, resamples=400).mean == pytest.approx(-forward.mean)


@pytest.mark.parametrize("samples", [10, 60])
def test_a_planted_difference_is_covered_about_as_often_as_promised(samples):
    rng = np.random.default_rng(5)
    planted, covered, trials = 0.4, 0, 200
    for _ in range(trials):
        hardness = rng.normal(0, 10, samples)
        before = hardness + rng.normal(0, 1, samples)
        after = hardness + planted + rng.normal(0, 1, samples)
        low, high = bootstrap_difference(before, after, resamples=400)[1:]
        covered += low <= planted <= high

    assert 0.91 <= covered / trials <= 0.985


# Quantiles of Student's t at 97.5% from its printed tables, by degrees of freedom.
@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (2, 4.303), (10, 2.228), (1000, 1.962)])
def test_the_ends_are_as_far_out_as_student_says(freedom, quantile):
    expected = NormalDist().cdf(-quantile * math.sqrt((freedom + 1) / freedom))
    assert _expanded_tail(0.025, freedom + 1) == pytest.approx(expected, rel=0.005, abs=1e-12)


@pytest.mark.parametrize("interval", [bootstrap_difference, serial_difference, score_difference])
@pytest.mark.parametrize(
    ("before", "after"), [([], []), ([1.0], [2.0, 3.0]), ([math.nan, 1.0], [1.0, 1.0]), ([[1.0]], [[2.0]])]
)
def test_incomparable_samples_are_refused(interval, before, after):
    with pytest.raises(ValueError, match=r"expected two non-empty lists of equal length|NaN|every value must be 100"):
        interval(before, after)


@pytest.mark.slow
def test_resamples_of_a_mean_give_the_bootstraps_interval() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.normal(0, 1, 400), rng.normal(0.1, 1, 400)
    draws = [rng.integers(400, size=400) for _ in range(4000)]
    found = resampled_difference([before[rows].mean() for rows in draws], [after[rows].mean() for rows in draws])
    expected = bootstrap_difference(before, after)
    assert found == pytest.approx(expected, abs=0.1 * (expected.high - expected.low))


def test_resamples_without_a_quality_are_left_out_and_some_must_be_left() -> None:
    assert resampled_difference([1, math.nan, 2], [2, 5, math.nan]) == (1, 1, 1)
    with pytest.raises(ValueError, match="every resample"):
        resampled_difference([math.nan], [1])


@pytest.mark.parametrize("interval", [bootstrap_difference, serial_difference, resampled_difference, score_difference])
def test_the_intervals_of_several_comparisons_are_wider_around_the_same_mean(interval) -> None:
    rng = np.random.default_rng(0)
    before, after = (100.0 * rng.integers(0, 2, 300) for _ in range(2))
    if interval is resampled_difference:
        before, after = (rng.normal(size=1000) for _ in range(2))
    one, three, ten = (interval(before, after, comparisons=count) for count in (1, 3, 10))
    assert one == interval(before, after)
    assert one.mean == three.mean == ten.mean
    assert ten.low < three.low < one.low < one.high < three.high < ten.high


def test_all_of_several_intervals_hold_at_once_in_95_percent_of_cases() -> None:
    rng, alone, together = np.random.default_rng(1), 0, 0
    for _ in range(1000):
        values = rng.normal(0, 1, (5, 50))
        found = [[serial_difference(np.zeros(50), row, comparisons=count) for row in values] for count in (1, 5)]
        held = [all(each.low <= 0 <= each.high for each in intervals) for intervals in found]
        alone, together = alone + held[0], together + held[1]
    assert (alone / 1000, together / 1000) == pytest.approx((0.95**5, 0.95), abs=0.02)
