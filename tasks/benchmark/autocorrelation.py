"""Correlation between one launch and the next, and the correction of intervals for it; NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# The order of fewer launches says next to nothing.
LEAST = 5
# Squares of deviations that are nothing but rounding.
_ROUNDING = 1e-20
_GRID = np.linspace(0, 0.95, 20)


@dataclass(frozen=True)
class Correction:
    """The difference between a mean of correlated launches and a mean of independent launches.

    Attributes
    ----------
    inflation
        Variance of the mean, divided by the expectation of the usual estimate s² / n.
    freedom
        Degrees of freedom of s².
    """

    inflation: float
    freedom: float


@lru_cache
def correction_of(launches: int, correlation: float) -> Correction:
    """Compute the correction for an autoregressive series of order one.

    Box, "Some theorems on quadratic forms applied in the study of analysis of variance problems, II", Annals of
    Mathematical Statistics 25(3), 1954: s² is about a chi-square with the freedom tr(CR)² / tr(CRCR), where R is the
    series' correlation matrix and C centres it.

    Parameters
    ----------
    correlation
        Correlation between one launch and the next, from 0 to less than 1.
    """
    if not correlation:
        return Correction(1.0, launches - 1)
    matrix = _correlations(launches, correlation)
    centred = matrix - matrix.mean(0)
    trace = float(np.trace(centred))
    inflation = float(matrix.sum()) / launches * (launches - 1) / trace
    return Correction(inflation, trace**2 / float((centred * centred.T).sum()))


def autocorrelation(series: Sequence[Floats]) -> float:
    """Estimate the correlation between one launch and the next, which all series share; return 0 if it is negative.

    A short series shows less autocorrelation than it has, because its own mean is subtracted (Marriott and Pope, "Bias
    in the estimation of autocorrelations", Biometrika 41, 1954). The estimate is therefore the correlation with which
    series of this length would show, on average, the mean autocorrelation of these series.

    Parameters
    ----------
    series
        Float64 [launches] of each subject. Only the longest series count, if they have `LEAST` launches.
    """
    launches = max(map(len, series), default=0)
    if launches < LEAST:
        return 0.0
    centred = np.stack([values - values.mean() for values in series if len(values) == launches])
    squares = (centred**2).sum(1)
    varies = squares > _ROUNDING
    if not varies.any():
        return 0.0
    products = (centred[:, 1:] * centred[:, :-1]).sum(1)
    seen = float((products[varies] / squares[varies]).mean())
    return float(np.interp(seen, _expected(launches), _GRID))


def _correlations(launches: int, correlation: float) -> Floats:
    index = np.arange(launches)
    matrix: Floats = correlation ** np.abs(index[:, None] - index)
    return matrix


@lru_cache
def _expected(launches: int) -> Floats:
    """Compute the autocorrelation that series of so many launches show on average, for each correlation of the grid.

    The mean of a ratio of quadratic forms in normal variables is an integral over the eigenvalues of their covariance
    (Sawa, "The exact moments of the least squares estimator for the autoregressive model", Journal of Econometrics 8,
    1978).
    """
    centre = np.eye(launches) - 1 / launches
    nodes, weights = np.polynomial.legendre.leggauss(100)
    # From (-1, 1) to (0, infinity).
    at, weights = (1 + nodes) / (1 - nodes), 2 * weights / (1 - nodes) ** 2
    means = []
    for correlation in _GRID:
        variances, axes = np.linalg.eigh(centre @ _correlations(launches, correlation) @ centre)
        variances = np.clip(variances, 0, None)
        products = (axes[:-1] * axes[1:]).sum(0)
        scales = 1 + 2 * at[:, None] * variances
        densities = np.exp(-np.log(scales).sum(1) / 2)
        means.append(float(weights @ ((variances / scales) @ products * densities)))
    return np.array(means)
