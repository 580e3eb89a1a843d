"""Ratios, their intervals, the bounds that decide, and percentiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import t, ttest_1samp

from tasks.measure.benchmark.statistics import (
    CHECKED_AT,
    LEAST,
    PERSISTENT_BIAS,
    PRIOR,
    Array,
    Noise,
    Ratio,
    Sample,
    autocorrelation,
    correction_of,
    launch_values,
    percentiles,
    step_down,
    verdict_of,
)


def series_of(generator: np.random.Generator, correlation: float, launches: int, subjects: int) -> Array:
    """Draw autoregressive series of order one, float64 [launches, subjects]."""
    logs = generator.normal(size=(launches, subjects))
    for launch in range(1, launches):
        logs[launch] *= np.sqrt(1 - correlation**2)
        logs[launch] += correlation * logs[launch - 1]
    return logs


@pytest.mark.parametrize("correlation", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("launches", [10, 40])
def test_many_series_show_their_correlation_however_short_they_are(correlation: float, launches: int) -> None:
    logs = series_of(np.random.default_rng(0), correlation, launches, 4000)
    assert autocorrelation(list(logs.T)) == pytest.approx(correlation, abs=0.05)


def test_independent_launches_and_launches_that_alternate_have_no_correlation() -> None:
    independent = series_of(np.random.default_rng(0), 0.0, 10, 4000)
    assert autocorrelation(list(independent.T)) < 0.02
    assert autocorrelation([np.array([1.0, -1.0] * 5)]) == 0


def test_a_noisy_subject_does_not_outweigh_the_others() -> None:
    logs = series_of(np.random.default_rng(0), 0.0, 20, 20)
    logs[:, 0] = 1e6 * np.arange(20)
    assert autocorrelation([logs[:, 0]]) > 0.9
    assert autocorrelation(list(logs.T)) < 0.2


def test_subjects_that_left_early_or_never_vary_do_not_count() -> None:
    logs = series_of(np.random.default_rng(1), 0.6, 20, 8)
    others = [np.arange(2.0), np.zeros(20)]
    assert autocorrelation([*logs.T, *others]) == autocorrelation(list(logs.T)) > 0
    assert autocorrelation(others) == 0
    assert autocorrelation([np.arange(float(LEAST - 1))]) == 0
    assert autocorrelation([]) == 0


@settings(max_examples=30)
@given(st.integers(3, 60), st.floats(0.01, 0.9), st.floats(0.01, 0.09))
@pytest.mark.slow
def test_more_correlation_widens_more(launches: int, correlation: float, step: float) -> None:
    less, more = correction_of(launches, correlation), correction_of(launches, correlation + step)
    assert 1 < less.inflation < more.inflation
    assert launches - 1 > less.freedom > more.freedom >= 1


@pytest.mark.parametrize("launches", CHECKED_AT)
def test_the_correction_suits_simulated_launches(launches: int) -> None:
    logs = series_of(np.random.default_rng(0), 0.5, launches, 20000)
    inflation = logs.mean(0).var() / (logs.var(0, ddof=1).mean() / launches)
    assert correction_of(launches, 0.5).inflation == pytest.approx(inflation, rel=0.08)


SECONDS = st.floats(1e-6, 1e2)


def times(shape: tuple[int, int] = (3, 4)) -> st.SearchStrategy[Array]:
    return arrays(np.float64, shape, elements=SECONDS)


def ratio_of(sample: Sample) -> Ratio:
    return Noise.pooled([sample]).interval(sample)


@settings(max_examples=30)
@given(times(), times(), times())
def test_intervals_contain_the_estimate_and_bounds_contain_the_interval(
    candidate: Array, baseline: Array, copy: Array
) -> None:
    sample, aa = Sample.against_two(candidate, baseline, copy), Sample.against_one(copy, baseline)
    noise = Noise.pooled([sample, aa])
    interval, bounds = noise.interval(sample), noise.bounds(sample, aa, 1)
    assert 0 < bounds.low <= interval.low <= interval.value * (1 + 1e-12)
    assert interval.value * (1 - 1e-12) <= interval.high <= bounds.high < np.inf


@settings(max_examples=20)
@given(times(), times(), st.floats(0.01, 100))
def test_a_faster_candidate_scales_ratio_and_interval(candidate: Array, baseline: Array, factor: float) -> None:
    ratio = ratio_of(Sample.against_one(candidate, baseline))
    scaled = ratio_of(Sample.against_one(candidate / factor, baseline))
    assert scaled.value == pytest.approx(ratio.value * factor, rel=1e-9)
    assert np.log(scaled.high / scaled.low) == pytest.approx(np.log(ratio.high / ratio.low), rel=1e-6, abs=1e-9)


@settings(max_examples=20)
@given(times())
def test_noise_that_hits_both_alike_cancels(baseline: Array) -> None:
    ratio = ratio_of(Sample.against_one(baseline / 2, baseline))
    assert [ratio.low, ratio.value, ratio.high] == pytest.approx([2, 2, 2])


def test_one_disturbed_pair_of_rounds_does_not_move_a_launch() -> None:
    logs = np.zeros((2, 6))
    logs[1, 2] = 9.0
    assert launch_values(logs).tolist() == [0, 0]


def test_one_sample_alone_has_students_interval() -> None:
    logs = np.array([0.1, 0.3, 0.2, 0.6])
    sample = Sample(logs, 2.0)
    expected = ttest_1samp(logs, 0).confidence_interval(0.95)
    ratio = ratio_of(sample)
    assert [ratio.low, ratio.high] == pytest.approx([np.exp(expected.low), np.exp(expected.high)])


def test_the_others_steady_the_bounds_of_a_sample_but_do_not_hide_that_it_is_unsteady() -> None:
    error = 1e-4
    quiet, wild = Sample(np.array([0.0, 0.01, 0.02]), 1.5), Sample(np.array([-1.0, 0.0, 1.0]), 1.5)
    others = [Sample(np.array([0.0, 0.1, 0.2]), 1.5) for _ in range(6)]
    typical = others[0]
    alone, together = Noise.pooled([typical]), Noise.pooled([typical, *others])
    assert together.half_width(typical, error) < alone.half_width(typical, error) / 5
    # Three launches that agree by luck count as about as noisy as the others.
    assert together.half_width(quiet, error) > together.half_width(typical, error) / 2
    own = float(wild.logs.std(ddof=1)) / 3**0.5
    assert Noise.pooled([wild, *others]).half_width(wild, error) > t.ppf(1 - error, PRIOR + 2) * own * (1 - 1e-9)


# Launches differ by at least a millionth: the statistics take differences as small as 1e-10 for rounding.
@settings(max_examples=30)
@given(
    arrays(np.float64, (3, 6), elements=st.integers(-(10**6), 10**6).map(lambda millionths: millionths / 1e6)),
    st.floats(0.1, 10),
    st.floats(-5, 5),
    st.floats(1e-6, 0.4),
)
def test_half_widths_scale_with_the_noise_and_do_not_depend_on_the_ratios(
    logs: Array, scale: float, shift: float, error: float
) -> None:
    samples = [Sample(each, 1.5) for each in logs]
    scaled = [Sample(each * scale + shift, 1.5) for each in logs]
    before = Noise.pooled(samples).half_width(samples[0], error)
    assert Noise.pooled(scaled).half_width(scaled[0], error) == pytest.approx(before * scale, rel=0.02, abs=1e-6)
    assert Noise.pooled(samples).half_width(samples[0], error / 2) >= before


def test_a_copy_that_differs_from_the_baseline_widens_the_bounds_by_the_difference() -> None:
    rng = np.random.default_rng(0)
    sample, quiet = Sample(1 + rng.normal(0, 0.001, 20), 1.5), Sample(rng.normal(0, 0.001, 20), 2.0)
    biased = Sample(quiet.logs + 0.2, 2.0)
    noise = Noise.pooled([sample, quiet])
    narrow, wide = noise.bounds(sample, quiet, 1), noise.bounds(sample, biased, 1)
    assert np.log(narrow.high / narrow.low) / 2 == pytest.approx(PERSISTENT_BIAS, rel=0.2)
    assert np.log(wide.high / wide.low) / 2 == pytest.approx(0.2, rel=0.1)


def night(generator: np.random.Generator, noisy: float, launches: int, correlation: float = 0.0) -> list[Sample]:
    """A benchmark of eight candidates as fast as the baseline, the first `noisy` times as noisy; last, the copy."""
    logs = generator.normal(0, 0.1, (launches, 10))
    for launch in range(1, launches):
        logs[launch] *= np.sqrt(1 - correlation**2)
        logs[launch] += correlation * logs[launch - 1]
    logs[:, 0] *= noisy
    baseline, copy = logs[:, 8], logs[:, 9]
    return [*(Sample((baseline + copy) / 2 - logs[:, index], 1.5) for index in range(8)), Sample(baseline - copy, 2.0)]


def coverage(noisy: float, launches: int, correlation: float = 0.0) -> tuple[float, float]:
    """The shares of 95% intervals, of the first candidate and of the second, that hold the true ratio."""
    generator = np.random.default_rng(0)
    covered = np.zeros(2)
    for _ in range(2000):
        samples = night(generator, noisy, launches, correlation)
        noise = Noise.pooled(samples)
        intervals = [noise.interval(sample) for sample in samples[:2]]
        covered += [interval.low <= 1 <= interval.high for interval in intervals]
    first, second = covered / 2000
    return float(first), float(second)


@pytest.mark.parametrize(("noisy", "launches"), [(1, 3), (3, 3), (6, 3), (6, 5), (6, 10)])
@pytest.mark.slow
def test_intervals_are_right_for_noisy_and_for_steady_candidates(noisy: float, launches: int) -> None:
    # Four standard errors of 2,000 draws at 95%; the correction for autocorrelation may widen by a little more.
    assert all(0.93 <= share <= 0.977 for share in coverage(noisy, launches))


@pytest.mark.slow
def test_intervals_are_right_where_launches_resemble_the_launch_before() -> None:
    # Student's interval covers 75%.
    assert min(coverage(1, 14, 0.5)) >= 0.91


def test_three_launches_of_a_noisy_candidate_seldom_promote_it() -> None:
    generator, nights = np.random.default_rng(0), 3000
    false = 0
    for _ in range(nights):
        *candidates, copy = night(generator, 6.0, 3)
        noise = Noise.pooled([*candidates, copy])
        false += any(noise.bounds(sample, copy, 8).low >= 1 for sample in candidates)
    # About 0.2% of nights by these bounds; 1.1% before the noise of each candidate counted.
    assert false / nights <= 0.005


# The shares of the error are 1/45, 2/45 and so on; between two looks that of the later one counts.
@pytest.mark.parametrize(
    ("launches", "share"),
    [(2, 1), (3, 1), (4, 2), (5, 2), (7, 3), (10, 4), (14, 5), (20, 6), (28, 7), (40, 8), (56, 9), (57, 9)],
)
@pytest.mark.parametrize(("comparisons", "bias"), [(0, 0.0), (1, 0.0), (7, 0.5)])
def test_bounds_follow_the_published_method(launches: int, share: int, comparisons: int, bias: float) -> None:
    """Whatever is pooled, the sample is noisier; launches alternate, so that nothing is corrected for their order."""
    turns = np.where(np.arange(launches) % 2, -1.0, 1.0)
    turns -= turns.mean()
    sample, copy = Sample(0.3 + 0.01 * turns, 1.5), Sample(bias + 0.001 * turns, 2.0)
    bounds = Noise.pooled([sample, copy]).bounds(sample, copy, comparisons)

    freedom, deviation = launches - 1, 0.01 * turns.std(ddof=1)
    prior, own, others = min(4, freedom), deviation**2 / 1.5, (0.001 * turns.std(ddof=1)) ** 2 / 2
    less = prior * np.sqrt(1.5 * (own + others) / 2 / own)
    wide = t.ppf(1 - 0.01 * share / 45 / max(1, comparisons), freedom + less) * deviation / np.sqrt(launches)
    students = t.ppf(0.975, freedom) * deviation / np.sqrt(launches)
    pooled = ((own + others) / 2 * prior + others * freedom) / (prior + freedom)
    seen = bias - t.ppf(0.975, freedom + prior) * np.sqrt(2 * pooled / launches)
    expected = max(wide, students) + max(np.log(1.03), seen)
    assert np.log([bounds.low, bounds.value, bounds.high]) == pytest.approx([0.3 - expected, 0.3, 0.3 + expected])


@given(st.lists(st.floats(0, 0.03), max_size=8))
def test_what_is_decided_leaves_its_share_of_the_error_to_the_rest_as_in_holms_procedure(p_values: list[float]) -> None:
    sharing = step_down(len(p_values), lambda count: sum(p <= 0.05 / count for p in p_values))
    accepted = 0
    for rank, p in enumerate(sorted(p_values)):
        if p > 0.05 / (len(p_values) - rank):
            break
        accepted += 1
    assert sum(p <= 0.05 / max(1, sharing) for p in p_values) == accepted


def test_a_very_uncertain_ratio_has_a_finite_interval() -> None:
    sample = Sample(np.array([0.0, 600.0]), 2.0)
    interval = Noise.pooled([sample]).interval(sample)
    assert interval.value == pytest.approx(np.exp(300))
    assert 0 < interval.low < interval.value < interval.high < np.inf
    single = Sample(np.array([1.0]), 2.0)
    assert Noise.pooled([single]).half_width(single, 0.025) == np.inf


@pytest.mark.parametrize(
    ("calls", "known"), [(0, (0, 0, 0)), (99, (1, 0, 0)), (100, (1, 1, 0)), (999, (1, 1, 0)), (1000, (1, 1, 1))]
)
def test_percentiles_appear_only_from_enough_calls_on(calls: int, known: tuple[int, int, int]) -> None:
    found = percentiles(np.linspace(1, 2, calls))
    assert tuple(int(value is not None) for value in found) == known
    assert [value for value in found if value is not None] == pytest.approx([1.5, 1.9, 1.99][: sum(known)], abs=1e-2)


@pytest.mark.parametrize(
    ("aa", "verdict"),
    [
        (Ratio(1.02, 1.0, 1.04), "valid"),
        (Ratio(1.0, 0.95, 1.05), "valid"),
        (Ratio(1.02, 1.01, 1.04), "inconclusive"),
        (Ratio(0.98, 0.96, 0.99), "inconclusive"),
        (Ratio(1.0, 0.94, 1.04), "inconclusive"),
        (Ratio(1.0, 0.96, 1.06), "inconclusive"),
    ],
)
def test_a_machine_resolves_where_the_baselines_copy_is_within_five_percent_of_it(aa: Ratio, verdict: str) -> None:
    assert verdict_of(aa) == verdict
