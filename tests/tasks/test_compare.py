"""Two evaluations are compared on the same samples only."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import save_file

from storage.artifacts import ArtifactStore
from storage.errors import MeasurementError
from tasks.compare import _expanded_tail, compare, compare_all, paired_difference
from tasks.job import Workspace
from tasks.refs import ArtifactRef
from tasks.results import Evaluation
from tasks.tensor_files import SAMPLES

results = arrays(np.float64, st.integers(2, 40), elements=st.floats(-100, 100, allow_nan=False))


def evaluation(store: ArtifactStore, recipe: str, **samples: list[float] | list[int]) -> Evaluation:
    with store.create("outputs", recipe, {}) as folder:
        save_file({name: torch.tensor(values) for name, values in samples.items()}, folder / SAMPLES)
    quality = samples.get("quality", [0.0])
    return Evaluation(
        recipe=recipe,
        runtime="eager",
        quality_metric="top1",
        quality=sum(quality) / len(quality),
        higher_is_better=True,
        metrics={},
        samples=len(quality),
        outputs=ArtifactRef(kind="outputs", digest=recipe),
    )


def test_agreement_is_the_share_of_equal_predictions(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    before = evaluation(store, "float", quality=[100.0, 100.0, 0.0, 0.0], prediction=[1, 2, 3, 4])
    after = evaluation(store, "int8", quality=[100.0, 0.0, 0.0, 0.0], prediction=[1, 3, 3, 4])
    comparison = compare(before, after, store)
    assert comparison.agreement == 0.75
    assert comparison.quality_difference == -25
    low, high = comparison.quality_difference_low, comparison.quality_difference_high
    assert low is not None
    assert high is not None
    assert low <= -25 <= high


def test_what_has_no_samples_has_neither_interval_nor_agreement(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    comparison = compare(evaluation(store, "float", other=[0.0]), evaluation(store, "int8", other=[0.0]), store)
    assert comparison.quality_difference == 0
    assert (comparison.quality_difference_low, comparison.quality_difference_high) == (None, None)
    assert comparison.agreement is None


def test_all_are_compared_in_their_order(tmp_path: Path) -> None:
    store, told = ArtifactStore(tmp_path), []
    first, second = (evaluation(store, name, quality=[value]) for name, value in (("float", 1.0), ("int8", 3.0)))
    workspace = Workspace(store, lambda done, total, unit="": told.append((done, total)))
    compared = compare_all(first, [first, second], workspace)
    assert [comparison.quality_difference for comparison in compared] == [0, 2]
    assert told == [(1, 2), (2, 2)]


def test_different_samples_are_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    before = evaluation(store, "float", quality=[100.0, 0.0], prediction=[1, 2])
    after = evaluation(store, "int8", quality=[100.0, 0.0, 0.0], prediction=[1, 2, 3])
    with pytest.raises(MeasurementError, match="int8/eager"):
        compare(before, after, store)


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
    with pytest.raises(ValueError, match=r"expected two lists|NaN"):
        paired_difference(before, after)
