"""Compute ratios from block times, with intervals and bounds that allow for correlation between launches."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from storage.results import WIDEST
from tasks.data.paired import student_quantile

Array = NDArray[np.float64]

LEAST = 5  # minimum number of launches for an estimate of the correlation
_ROUNDING = 1e-20  # a sum of squared deviations up to this value is a rounding error
_GRID = np.linspace(0, 0.95, 20)


@dataclass(frozen=True)
class Correction:
    """A mean's variance divided by the expected value of s² / n, which has ``freedom`` degrees of freedom."""

    inflation: float
    freedom: float


@lru_cache
def correction_of(launches: int, correlation: float) -> Correction:
    """Compute the correction for a first-order autoregressive series.

    See Box, "Some theorems on quadratic forms applied in the study of analysis of variance problems, II", Annals of
    Mathematical Statistics 25(3), 1954. The estimate s² approximately follows a scaled chi-square distribution with
    tr(CR)² / tr(CRCR) degrees of freedom. R is the series' correlation matrix, and C is the centring matrix.
    """
    if not correlation:
        return Correction(1.0, launches - 1)
    matrix = _correlations(launches, correlation)
    centred = matrix - matrix.mean(0)
    trace = float(np.trace(centred))
    inflation = float(matrix.sum()) / launches * (launches - 1) / trace
    return Correction(inflation, trace**2 / float((centred * centred.T).sum()))


def autocorrelation(series: Sequence[Array]) -> float:
    """Estimate the correlation between successive launches, pooled over all series, each float64 [launches].

    The autocorrelation of a short series is underestimated, because the series' mean is subtracted. See Marriott and
    Pope, "Bias in the estimation of autocorrelations", Biometrika 41, 1954. The function therefore returns the
    correlation that would on average produce the observed autocorrelation. Only the longest series are used, and only
    if they have at least `LEAST` launches.
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


def _correlations(launches: int, correlation: float) -> Array:
    index = np.arange(launches)
    matrix: Array = correlation ** np.abs(index[:, None] - index)
    return matrix


@lru_cache
def _expected(launches: int) -> Array:
    """Compute, for each correlation in the grid, the mean autocorrelation of a series with `launches` values.

    See Sawa, "The exact moments of the least squares estimator for the autoregressive model", Journal of Econometrics
    8, 1978: the mean of a ratio of quadratic forms is an integral over the covariance matrix's eigenvalues and
    eigenvectors.
    """
    centre = np.eye(launches) - 1 / launches
    nodes, weights = np.polynomial.legendre.leggauss(100)
    # Transform the nodes from (-1, 1) to (0, infinity).
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


CHECKED_AT = (3, 5, 7, 10, 14, 20, 28, 40, 56)  # numbers of launches after which a decision is allowed
# Maximum fraction of benchmarks in which at least one candidate is wrongly accepted, and likewise wrongly rejected.
# Later looks have larger shares of the error (1 : 2 : 3 ...), because a few launches seldom decide a close case.
ERROR = 0.01
# A bias that a subject may have in all launches, and that additional launches do not reduce.
PERSISTENT_BIAS = math.log(1.03)
# Degrees of freedom that the other subjects contribute to the bounds on a subject's speed. With a larger value,
# exceptionally noisy candidates would be wrongly promoted more often than `ERROR` allows (see benchmarks.decisions).
PRIOR = 4.0
# From this multiple of the mean variance on, the other subjects say less about a subject.
NOISY = 1.5
# Variances of log ratios, as multiples of one subject's variance; the mean of the baseline and its copy adds 1/2.
_AGAINST_TWO, _AGAINST_ONE = 1.5, 2.0


@dataclass(frozen=True)
class Ratio:
    """Baseline latency ÷ candidate latency (above 1 if the candidate is faster), with a confidence interval."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, log: float, half_width: float) -> Ratio:
        """Return the ratio and its interval, computed from a log ratio and the half-width of its interval."""
        half_width = min(half_width, 300.0)  # keeps the exponentials finite
        return cls(math.exp(log), math.exp(log - half_width), math.exp(log + half_width))


@dataclass(frozen=True)
class Sample:
    """One log ratio per launch, float64 [launches], with a variance as a multiple of one subject's variance."""

    logs: Array
    variance: float

    @classmethod
    def against_one(cls, subject_s: Array, other_s: Array) -> Sample:
        """Compare two subjects by their seconds per call, float64 [launches, rounds]."""
        return cls(launch_values(np.log(other_s) - np.log(subject_s)), _AGAINST_ONE)

    @classmethod
    def against_two(cls, subject_s: Array, baseline_s: Array, copy_s: Array) -> Sample:
        """Compare a subject with the geometric mean of the baseline and its copy, to halve the baseline's variance."""
        reference = (np.log(baseline_s) + np.log(copy_s)) / 2
        return cls(launch_values(reference - np.log(subject_s)), _AGAINST_TWO)

    @cached_property
    def mean(self) -> float:
        """Mean of the log ratios."""
        return float(self.logs.mean())

    def over(self, other: Sample) -> Sample:
        """Return the log ratios of two subjects with the same reference, from the launches that timed both."""
        both = min(len(self.logs), len(other.logs))
        return Sample(self.logs[:both] - other.logs[:both], _AGAINST_ONE)

    @cached_property
    def squares(self) -> float:
        """Sum of squared deviations from the mean, divided by ``variance``."""
        return float(((self.logs - self.mean) ** 2).sum()) / self.variance


@dataclass(frozen=True)
class Noise:
    """Launch-to-launch variation of a benchmark's log times: one subject's variance, averaged over the samples."""

    variance: float
    freedom: int
    autocorrelation: float = 0.0

    @classmethod
    def pooled(cls, samples: Iterable[Sample]) -> Noise:
        """Pool a benchmark's samples, all of which come from the same launches on the same host."""
        pooled = list(samples)
        freedom = sum(len(sample.logs) - 1 for sample in pooled)
        variance = sum(sample.squares for sample in pooled) / freedom if freedom else math.inf
        return cls(variance, freedom, autocorrelation([sample.logs for sample in pooled]))

    def interval(self, sample: Sample) -> Ratio:
        """Return the ratio with Student's 95% interval, based on the sample's own standard deviation."""
        return Ratio.around(sample.mean, self.half_width(sample, 0.025, prior=0))

    def half_width(self, sample: Sample, error: float, prior: float = PRIOR) -> float:
        """Return half the width of an interval that misses the true value on each side with probability `error`.

        The mean variance of all samples adds `prior` degrees of freedom (moderated t). See Smyth, "Linear models and
        empirical Bayes methods for assessing differential expression in microarray experiments", Statistical
        Applications in Genetics and Molecular Biology 3(1), 2004. A variance is never shrunk below the sample's own
        variance, so a noisy sample stays noisy. If its variance exceeds `NOISY` times the mean variance, the degrees of
        freedom that are added decrease with its standard deviation. A `prior` of 0 gives Student's t interval.
        """
        launches = len(sample.logs)
        if launches < 2:
            return math.inf
        correction = correction_of(launches, self.autocorrelation)
        own = sample.squares / (launches - 1)
        prior = min(prior, max(0.0, self.freedom - correction.freedom))
        if own > NOISY * self.variance:
            prior *= math.sqrt(NOISY * self.variance / own)
        shrunken = (prior * self.variance + correction.freedom * own) / (prior + correction.freedom) if prior else own
        variance = max(own, shrunken) * sample.variance * correction.inflation / launches
        return student_quantile(1 - error, prior + correction.freedom) * math.sqrt(variance)

    def bounds(self, sample: Sample, copy: Sample, comparisons: int) -> Ratio:
        """Return the ratio with bounds that hold at every look and for all `comparisons` simultaneously.

        The error is divided among looks and comparisons (group-sequential Bonferroni; see also `step_down`). The
        half-width is never smaller than that of Student's 95% t interval. The bounds also allow for a bias that
        additional launches do not reduce: the amount by which the deviation of the baseline's `copy` exceeds the
        half-width of its interval, but at least `PERSISTENT_BIAS`.
        """
        look = min(bisect_left(CHECKED_AT, len(sample.logs)), len(CHECKED_AT) - 1)
        share = (look + 1) / sum(range(len(CHECKED_AT) + 1))
        half = max(
            self.half_width(sample, ERROR * share / max(1, comparisons)), self.half_width(sample, 0.025, prior=0)
        )
        seen = abs(copy.mean) - self.half_width(copy, 0.025)
        return Ratio.around(sample.mean, half + max(PERSISTENT_BIAS, seen))

    def interval_of_least(self, samples: Sequence[Sample]) -> tuple[float, float]:
        """Return the ends of a 95% interval for the smallest of several ratios.

        An interval around the smallest measured ratio would end too low, because the choice favours ratios that were
        measured too small. Taking the smallest ends makes the lower end wrong less often, and the upper end more often,
        than in 2.5% of the cases; together, they stay close to 5% (see benchmarks.decisions).
        """
        intervals = [self.interval(sample) for sample in samples]
        return min(ratio.low for ratio in intervals), min(ratio.high for ratio in intervals)


def step_down(comparisons: int, decided: Callable[[int], int]) -> int:
    """Return how many comparisons share the error of a check, once those that were decided need no share any more.

    `decided` returns how many comparisons are certain if the given number shares the error. See Holm, "A simple
    sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6(2), 1979.
    """
    sharing, left = comparisons + 1, comparisons
    while left < sharing:
        sharing, left = left, max(1, comparisons - decided(left))
    return sharing


def launch_values(logs: Array) -> Array:
    """Return each launch's median over mirrored pairs of rounds, so that linear drift cancels out."""
    pairs = [logs[:, first : first + 2].mean(axis=1) for first in range(0, logs.shape[1], 2)]
    values: Array = np.median(np.stack(pairs, axis=1), axis=1)
    return values


def verdict_of(aa: Ratio) -> Literal["valid", "inconclusive"]:
    """Return ``"inconclusive"`` if the interval of the A/A ratio excludes 1 or is wider than ±5%."""
    return "valid" if 1 - WIDEST <= aa.low <= 1 <= aa.high <= 1 + WIDEST else "inconclusive"


def percentiles(single_s: Array) -> tuple[float | None, float | None, float | None]:
    """Return the 50th, 90th and 99th percentiles; the last two need 100 and 1,000 calls, and are None otherwise."""
    p50, p90, p99 = (
        float(np.quantile(single_s, share)) if len(single_s) >= least else None
        for share, least in ((0.5, 1), (0.9, 100), (0.99, 1000))
    )
    return p50, p90, p99
