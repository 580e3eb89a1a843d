"""The interval of a paired difference."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tasks.evaluate.paired import _expanded_tail, paired_difference

results = arrays(np.float64, st.integers(2, 40), elements=st.floats(-100, 100, allow_nan=False))


@given(results)
def test_equal_results_differ_by_exactly_nothing(result):
    assert paired_difference(result, result, resamples=50) == (0, 0, 0)


@given(results, st.floats(-50, 50))
def test_a_constant_shift_has_an_interval_without_width(result, shift):
    difference = paired_difference(result, result + shift, resamples=50)

    assert difference.mean == pytest.approx(shift, abs=1e-9)
    assert difference.high - difference.low < 1e-6


@given(
    results.flatmap(
        lambda before: st.tuples(st.just(before), arrays(np.float64, len(before), elements=st.floats(0, 9)))
    )
)
def test_the_interval_surrounds_the_mean_and_turns_around_with_the_roles(pair):
    before, after = pair

    forward = paired_difference(before, after, resamples=400)

    assert forward.low <= forward.mean + 1e-9
    assert forward.mean <= forward.high + 1e-9
    assert paired_difference(after, before, resamples=400).mean == pytest.approx(-forward.mean)


def test_the_interval_is_the_same_each_time_and_differs_with_the_seed():
    rng = np.random.default_rng(1)
    before, after = rng.normal(size=(2, 100))

    assert paired_difference(before, after) == paired_difference(before, after)
    assert paired_difference(before, after, seed=1) != paired_difference(before, after)


@pytest.mark.parametrize("samples", [10, 60])
def test_a_planted_difference_is_covered_about_as_often_as_promised(samples):
    rng = np.random.default_rng(5)
    planted, covered, trials = 0.4, 0, 200
    for _ in range(trials):
        hardness = rng.normal(0, 10, samples)
        before = hardness + rng.normal(0, 1, samples)
        after = hardness + planted + rng.normal(0, 1, samples)
        low, high = paired_difference(before, after, resamples=400)[1:]
        covered += low <= planted <= high

    assert 0.91 <= covered / trials <= 0.985


def test_clusters_widen_the_interval_where_their_samples_go_together():
    rng = np.random.default_rng(2)
    clusters = np.repeat(np.arange(20), 30)
    before = np.zeros(600)
    after = np.repeat(rng.normal(0, 1, 20), 30) + rng.normal(0, 0.1, 600)

    alone = paired_difference(before, after)
    together = paired_difference(before, after, clusters=clusters)

    assert together.mean == pytest.approx(alone.mean)
    assert together.high - together.low > 3 * (alone.high - alone.low)


def test_one_wrong_image_in_five_hundred_is_no_loss():
    right = np.full(500, 100.0)
    candidate = right.copy()
    candidate[7] = 0

    difference = paired_difference(right, candidate)

    assert difference.mean == pytest.approx(-0.2)
    assert difference.high == 0


def test_the_width_is_that_of_the_normal_approximation_for_many_samples():
    rng = np.random.default_rng(3)
    differences = rng.choice([-100.0, 0.0, 100.0], p=[0.05, 0.92, 0.03], size=20_000)

    _, low, high = paired_difference(np.zeros(20_000), differences)

    assert high - low == pytest.approx(2 * 1.96 * differences.std() / math.sqrt(20_000), rel=0.05)


# Quantiles of Student's t at 97.5% from its printed tables, by degrees of freedom.
@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (2, 4.303), (10, 2.228), (1000, 1.962)])
def test_the_ends_are_as_far_out_as_student_says(freedom, quantile):
    expected = NormalDist().cdf(-quantile * math.sqrt((freedom + 1) / freedom))
    assert _expanded_tail(0.025, freedom + 1) == pytest.approx(expected, rel=0.005, abs=1e-12)


@pytest.mark.parametrize(
    ("before", "after"), [([], []), ([1.0], [1.0, 2.0]), ([math.nan, 1.0], [1.0, 1.0]), ([[1.0]], [[2.0]])]
)
def test_what_cannot_be_compared_is_refused(before, after):
    with pytest.raises(ValueError, match=r"expected two lists|no numbers"):
        paired_difference(before, after)


def test_clusters_must_name_every_sample():
    with pytest.raises(ValueError, match="2 cluster names"):
        paired_difference([0.0, 1.0], [1.0, 3.0], clusters=[1])
