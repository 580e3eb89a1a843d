"""Compute ratios with intervals and bounds from block times, corrected for correlation between successive launches."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from storage.results import WIDEST
from tasks.paired import student_quantile

Floats = NDArray[np.float64]

# With fewer launches, correlation cannot be estimated.
LEAST = 5
# Sums of squared deviations up to this value are rounding.
_ROUNDING = 1e-20
_GRID = np.linspace(0, 0.95, 20)


@dataclass(frozen=True)
class Correction:
    """The difference between means of correlated and of independent launches.

    ``inflation`` is the variance of the mean ÷ the expectation of the usual estimate s² / n, and ``freedom`` the
    degrees of freedom of s².
    """

    inflation: float
    freedom: float


@lru_cache
def correction_of(launches: int, correlation: float) -> Correction:
    """Compute the correction for an autoregressive series of order one.

    Box, "Some theorems on quadratic forms applied in the study of analysis of variance problems, II",
    Annals of Mathematical Statistics 25(3), 1954: s² is approximately chi-square with tr(CR)² / tr(CRCR) degrees of
    freedom, where R is the series' correlation matrix and C centres it.

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
    """Estimate the correlation of successive launches, which all series share; return 0 if it is negative.

    A short series shows less autocorrelation than it has, because its own mean is subtracted (Marriott and Pope, "Bias
    in the estimation of autocorrelations", Biometrika 41, 1954). The estimate corrects this bias: it is the correlation
    whose expected autocorrelation, at this length, equals the observed mean.

    Parameters
    ----------
    series
        One series per subject, float64 [launches]. Only the longest ones are used, if they have `LEAST` launches.
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
    observed = float((products[varies] / squares[varies]).mean())
    return float(np.interp(observed, _expected(launches), _GRID))


def _correlations(launches: int, correlation: float) -> Floats:
    index = np.arange(launches)
    matrix: Floats = correlation ** np.abs(index[:, None] - index)
    return matrix


@lru_cache
def _expected(launches: int) -> Floats:
    """Compute the expected autocorrelation of series of this length for each correlation of the grid.

    The mean of a ratio of quadratic forms in normal variables is an integral over the eigenvalues of their covariance
    (Sawa, "The exact moments of the least squares estimator for the autoregressive model", Journal of Econometrics 8,
    1978).
    """
    centre = np.eye(launches) - 1 / launches
    nodes, weights = np.polynomial.legendre.leggauss(100)
    # From (-1, 1) to (0, infinity).
    points, weights = (1 + nodes) / (1 - nodes), 2 * weights / (1 - nodes) ** 2
    means = []
    for correlation in _GRID:
        variances, axes = np.linalg.eigh(centre @ _correlations(launches, correlation) @ centre)
        variances = np.clip(variances, 0, None)
        products = (axes[:-1] * axes[1:]).sum(0)
        scales = 1 + 2 * points[:, None] * variances
        densities = np.exp(-np.log(scales).sum(1) / 2)
        means.append(float(weights @ ((variances / scales) @ products * densities)))
    return np.array(means)


Array = NDArray[np.float64]

# Numbers of launches after which a decision is allowed.
LOOKS = (3, 5, 7, 10, 14, 20, 28, 40, 56)
# Share of benchmarks in which any decision may be wrong in one direction. Later looks get a larger part of it
# (proportional to 1, 2, 3 ...), because a few launches seldom decide a close case.
ERROR = 0.01
# Bias that one subject may have in every launch, so that further launches do not average it out.
STICKS = math.log(1.03)
# Degrees of freedom that the other subjects add to a subject's own in the deciding bounds. With more, candidates far
# noisier than the others would be promoted wrongly in more than `ERROR` of benchmarks (benchmarks.decisions).
PRIOR = 4.0
# Variance of a log ratio in units of one subject's variance: against the mean of baseline and copy (1 + 1/2), and
# against one subject (1 + 1).
_AGAINST_TWO, _AGAINST_ONE = 1.5, 2.0


@dataclass(frozen=True)
class Ratio:
    """Baseline latency ÷ candidate latency (above 1 is faster), with the ends of an interval."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, log: float, half_width: float) -> Ratio:
        """Return the ratio and its interval from a log ratio and half the interval's width."""
        half_width = min(half_width, 300.0)  # keeps the exponentials finite
        return cls(math.exp(log), math.exp(log - half_width), math.exp(log + half_width))


@dataclass(frozen=True)
class Sample:
    """One log ratio per launch, float64 [launches]; ``variance`` is in units of one subject's variance."""

    logs: Array
    variance: float

    @classmethod
    def against_one(cls, subject_s: Array, reference_s: Array) -> Sample:
        """Compare a subject with another subject, from seconds per call, float64 [launches, rounds]."""
        return cls(launch_values(np.log(reference_s) - np.log(subject_s)), _AGAINST_ONE)

    @classmethod
    def against_two(cls, subject_s: Array, baseline_s: Array, copy_s: Array) -> Sample:
        """Compare with the geometric mean of the baseline and its copy, which halves the variance of the reference."""
        reference = (np.log(baseline_s) + np.log(copy_s)) / 2
        return cls(launch_values(reference - np.log(subject_s)), _AGAINST_TWO)

    @cached_property
    def mean(self) -> float:
        """Mean of the log ratios."""
        return float(self.logs.mean())

    @cached_property
    def squares(self) -> float:
        """Sum of the squared deviations from the mean, in units of one subject's variance."""
        return float(((self.logs - self.mean) ** 2).sum()) / self.variance


@dataclass(frozen=True)
class Noise:
    """Variation of one benchmark's log times from launch to launch.

    ``variance`` is one subject's variance, averaged over the samples, with ``freedom`` degrees of freedom.
    ``autocorrelation`` is the correlation of successive launches, common to all samples and at least 0.
    """

    variance: float
    freedom: int
    autocorrelation: float = 0.0

    @classmethod
    def pooled(cls, samples: Iterable[Sample]) -> Noise:
        """Pool all samples of a benchmark, which come from the same launches on the same machine."""
        sample_list = list(samples)
        freedom = sum(len(sample.logs) - 1 for sample in sample_list)
        variance = sum(sample.squares for sample in sample_list) / freedom if freedom else math.inf
        return cls(variance, freedom, autocorrelation([sample.logs for sample in sample_list]))

    def interval(self, sample: Sample) -> Ratio:
        """Return the ratio with Student's 95% interval, from the sample's own deviation."""
        return Ratio.around(sample.mean, self.half_width(sample, 0.025, prior=0))

    def half_width(self, sample: Sample, error: float, prior: float = PRIOR) -> float:
        """Return half the width of an interval that misses the true value on one side in a share `error` of cases.

        The mean variance of all samples adds `prior` degrees of freedom to the sample's own (moderated t: Smyth,
        "Linear models and empirical Bayes methods for assessing differential expression in microarray experiments",
        Statistical Applications in Genetics and Molecular Biology 3(1), 2004). The prior is fixed because a few
        subjects cannot estimate it. Shrinking never lowers a variance, so it cannot hide a noisy sample. A `prior`
        of 0 gives Student's half width.
        """
        launches = len(sample.logs)
        if launches < 2:
            return math.inf
        correction = correction_of(launches, self.autocorrelation)
        own = sample.squares / (launches - 1)
        prior = min(prior, max(0.0, self.freedom - correction.freedom))
        shrunken = (prior * self.variance + correction.freedom * own) / (prior + correction.freedom) if prior else own
        variance = max(own, shrunken) * sample.variance * correction.inflation / launches
        return student_quantile(1 - error, prior + correction.freedom) * math.sqrt(variance)

    def bounds(self, sample: Sample, copy: Sample, comparisons: int) -> Ratio:
        """Return the ratio with bounds that hold at every look and for all comparisons simultaneously.

        The error is divided among looks and comparisons (group-sequential Bonferroni). The half width comes from
        shrunken variances, or from the interval if that is wider. The bounds also include a bias that launches do not
        average out: `STICKS`, or the copy's deviation beyond its own noise if that is larger.

        Parameters
        ----------
        copy
            The baseline against its copy (A/A).
        comparisons
            Number of ratios that lead to decisions in this benchmark.
        """
        look = min(bisect_left(LOOKS, len(sample.logs)), len(LOOKS) - 1)
        share = (look + 1) / sum(range(len(LOOKS) + 1))
        half = max(
            self.half_width(sample, ERROR * share / max(1, comparisons)), self.half_width(sample, 0.025, prior=0)
        )
        sticking = abs(copy.mean) - self.half_width(copy, 0.025)
        return Ratio.around(sample.mean, half + max(STICKS, sticking))


def launch_values(logs: Array) -> Array:
    """Reduce [launches, rounds] to one value per launch: the median over mirrored pairs, which removes linear drift."""
    pairs = [logs[:, first : first + 2].mean(axis=1) for first in range(0, logs.shape[1], 2)]
    values: Array = np.median(np.stack(pairs, axis=1), axis=1)
    return values


def verdict_of(aa: Ratio) -> Literal["valid", "inconclusive"]:
    """Return "inconclusive" if the interval of the A/A ratio excludes 1 or is wider than ±5%."""
    return "valid" if 1 - WIDEST <= aa.low <= 1 <= aa.high <= 1 + WIDEST else "inconclusive"


def percentiles(single_s: Array) -> tuple[float | None, float | None, float | None]:
    """Return the 50th, 90th and 99th percentiles of single calls, or None below 1, 100 and 1,000 calls."""
    p50, p90, p99 = (
        float(np.quantile(single_s, share)) if len(single_s) >= least else None
        for share, least in ((0.5, 1), (0.9, 100), (0.99, 1000))
    )
    return p50, p90, p99
