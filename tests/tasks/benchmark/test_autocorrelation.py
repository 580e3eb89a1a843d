"""Launches that resemble the launch before, on series whose correlation is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.benchmark.autocorrelation import LEAST, autocorrelation, correction_of
from tasks.benchmark.statistics import LOOKS, Array


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


@pytest.mark.parametrize("launches", [1, 2, LEAST - 1])
def test_too_few_launches_say_nothing_of_their_order(launches: int) -> None:
    assert autocorrelation([np.arange(float(launches))]) == 0


def test_subjects_that_left_early_or_never_vary_do_not_count() -> None:
    logs = series_of(np.random.default_rng(1), 0.6, 20, 8)
    others = [np.arange(2.0), np.zeros(20)]
    assert autocorrelation([*logs.T, *others]) == autocorrelation(list(logs.T)) > 0
    assert autocorrelation(others) == 0
    assert autocorrelation([]) == 0


@given(st.integers(2, 60))
def test_independent_launches_need_no_correction(launches: int) -> None:
    correction = correction_of(launches, 0.0)
    assert (correction.inflation, correction.freedom) == (1, launches - 1)


@settings(max_examples=30)
@given(st.integers(3, 60), st.floats(0.01, 0.9), st.floats(0.01, 0.09))
@pytest.mark.slow
def test_more_correlation_widens_more(launches: int, correlation: float, step: float) -> None:
    less, more = correction_of(launches, correlation), correction_of(launches, correlation + step)
    assert 1 < less.inflation < more.inflation
    assert launches - 1 > less.freedom > more.freedom >= 1


def test_long_series_lose_as_many_launches_as_the_textbook_says() -> None:
    # The effective number of launches is n (1 - r) / (1 + r) in the limit.
    assert correction_of(400, 0.5).inflation == pytest.approx(3, rel=0.01)


@pytest.mark.parametrize("launches", LOOKS)
def test_the_correction_is_what_simulated_launches_need(launches: int) -> None:
    logs = series_of(np.random.default_rng(0), 0.5, launches, 20000)
    inflation = logs.mean(0).var() / (logs.var(0, ddof=1).mean() / launches)
    assert correction_of(launches, 0.5).inflation == pytest.approx(inflation, rel=0.08)
