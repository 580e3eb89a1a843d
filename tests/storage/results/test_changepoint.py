from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.results.changepoint import ALPHA, LEAST_EFFECT, REFERENCE_NIGHTS, Floats, scan

NOISE = 0.01
seeds = st.integers(0, 2**32 - 1)


def noise(count: int, seed: int = 0, sd: float = NOISE) -> Floats:
    return np.random.default_rng(seed).normal(0, sd, count)


@pytest.mark.parametrize("history", [10, REFERENCE_NIGHTS, 200])
@pytest.mark.parametrize("size", [-0.1, 0.1])
@pytest.mark.slow
def test_a_step_is_found_with_its_night_its_size_and_the_first_nights_as_reference(history: int, size: float) -> None:
    values = noise(history + 4) + np.where(np.arange(history + 4) >= history, size, 0)
    found = scan(values, np.full(len(values), NOISE))
    assert found is not None
    assert found.is_change
    assert found.starts[found.best] == history
    assert found.shift[found.best] == pytest.approx(size, abs=3 * NOISE)
    assert found.nights[found.best] == min(history, REFERENCE_NIGHTS)
    assert found.reference[found.best] == pytest.approx(values[: min(history, REFERENCE_NIGHTS)].mean(), abs=1e-9)


@given(st.integers(0, 40), st.floats(-0.5, 0.5))
def test_one_night_decides_nothing_however_far_off(outlier: int, size: float) -> None:
    # The other nights do not deviate. Beside a night that deviates in the same direction, an outlier can make a change.
    values = np.zeros(41)
    values[outlier] = size
    found = scan(values, np.full(41, NOISE))
    assert found is not None
    assert not found.is_change


@given(seeds, st.floats(-5, 5))
@settings(max_examples=40, deadline=None)
@pytest.mark.slow
def test_only_differences_count_and_both_directions_alike(seed: int, level: float) -> None:
    values, sds = noise(25, seed, 0.03), np.abs(noise(25, seed + 1)) + 0.001
    found, moved, mirrored = scan(values, sds), scan(values + level, sds), scan(-values, sds)
    assert found is not None
    assert moved is not None
    assert mirrored is not None
    np.testing.assert_allclose(moved.p, found.p, rtol=1e-5)
    np.testing.assert_allclose(moved.shift, found.shift, atol=1e-8)
    np.testing.assert_allclose(mirrored.shift, -found.shift, atol=1e-12)


def test_a_small_step_is_no_change_however_certain() -> None:
    values = np.where(np.arange(60) >= 30, -0.9 * LEAST_EFFECT, 0) + noise(60, sd=0.001)
    found = scan(values, np.full(60, 0.001))
    assert found is not None
    assert found.evidence.max() > 20
    assert not found.is_change


def test_an_uncertain_night_has_little_weight() -> None:
    values, sds = noise(33), np.full(33, NOISE)
    values[30:] -= 0.06
    values[31], sds[31] = 0.5, 0.3
    found = scan(values, sds)
    assert found is not None
    assert found.is_change
    assert found.shift[found.best] == pytest.approx(-0.06, abs=2 * NOISE)


@pytest.mark.slow
def test_a_slow_decline_is_compared_with_the_first_nights() -> None:
    values = noise(40) - np.maximum(np.arange(40) - 30, 0) * 0.01
    found = scan(values, np.full(40, NOISE))
    assert found is not None
    assert found.is_change
    assert found.reference[found.best] == pytest.approx(0, abs=NOISE)


@pytest.mark.parametrize("back", [1, 2, 3])
def test_a_change_that_lasted_long_is_over_on_the_second_night_back(back: int) -> None:
    values = noise(75) - 0.1 * (np.arange(75) >= 30)
    values[75 - back :] += 0.1
    found = scan(values, np.full(75, NOISE))
    assert found is not None
    assert found.is_change is (back < 2)


def test_intervals_too_wide_to_show_a_change_are_not_comparable() -> None:
    precise, vague = scan(noise(20), np.full(20, NOISE)), scan(noise(20), np.full(20, 0.25))
    assert precise is not None
    assert vague is not None
    assert precise.is_comparable
    assert not vague.is_comparable
    assert vague.resolution > 10 * ALPHA > 0
