"""Compute the difference between two results on the same samples, with a 95% interval.

Samples stay paired, so that the common effect of difficult samples cancels out. With several ``comparisons``, each
interval gets an equal part of the 5% error (Bonferroni). See Dunn, "Multiple comparisons among means", Journal of the
American Statistical Association 56, 1961. All functions take one number per sample in the same order, [N], and raise
ValueError if the arrays are empty or differ in length.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_CONFIDENCE = 0.95
RIGHT, WRONG = 100.0, 0.0
_BLOCKS = 10
_HALVINGS = 60  # more bisections would exceed double precision
_DRAWN_AT_ONCE = 1 << 20  # random values that are drawn at once, to limit memory use to tens of megabytes


class PairedDifference(NamedTuple):
    """Mean difference (candidate - baseline), and the ends of its 95% interval."""

    mean: float
    low: float
    high: float


def _tail(comparisons: int) -> float:
    """Return the probability that an interval misses the true difference on a given side."""
    return (1 - _CONFIDENCE) / 2 / comparisons


def score_difference(baseline: ArrayLike, candidate: ArrayLike, *, comparisons: int = 1) -> PairedDifference:
    """Return the score interval of the difference between two accuracies, in percentage points.

    See Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample
    design", Statistics in Medicine 17, 1998. A right answer counts 100, and a wrong answer 0. If both results agree on
    all N samples, the interval's ends are ±z² / (N + z²), because agreement does not prove that the results never
    differ.
    """
    before, after = _paired(baseline, candidate)
    if not np.isin([before, after], [RIGHT, WRONG]).all():
        raise ValueError(f"every value must be {RIGHT:g} (right answer) or {WRONG:g} (wrong answer)")
    gained, lost, samples = int((after > before).sum()), int((after < before).sum()), len(before)
    quantile = NormalDist().inv_cdf(1 - _tail(comparisons))
    low, high = _score_low(gained, lost, samples, quantile), -_score_low(lost, gained, samples, quantile)
    return PairedDifference(*(RIGHT * share for share in ((gained - lost) / samples, low, high)))


def serial_difference(baseline: ArrayLike, candidate: ArrayLike, *, comparisons: int = 1) -> PairedDifference:
    """Return Student's t interval of the mean difference between two autocorrelated series.

    The differences are divided into ten blocks, whose means are nearly independent if the blocks are much longer than
    the range of the dependence. Schmeiser, "Batch size effects in the analysis of simulation output", Operations
    Research 30(3), 1982, recommends at least ten; with more blocks, the intervals of short series are too narrow.
    """
    differences = _differences(baseline, candidate)
    if len(differences) < 2:
        raise ValueError(f"an interval needs at least two numbers, got {len(differences)}")
    blocks = np.array_split(differences, min(_BLOCKS, len(differences)))
    means = np.array([block.mean() for block in blocks])
    mean = float(differences.mean())
    half = -student_quantile(_tail(comparisons), len(means) - 1) * float(means.std(ddof=1)) / math.sqrt(len(means))
    return PairedDifference(mean, mean - half, mean + half)


def bootstrap_difference(
    baseline: ArrayLike, candidate: ArrayLike, *, resamples: int = 10_000, seed: int = 0, comparisons: int = 1
) -> PairedDifference:
    """Return the bootstrap interval of the mean difference between two results on the same independent samples.

    Samples are drawn with replacement and stay paired (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993,
    chapters 6 and 13). The percentiles are expanded, so that the interval is not too narrow for few samples:
    Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69(4), 2015, section 5.3.
    """
    differences = _differences(baseline, candidate)
    mean = float(differences.mean())
    if np.ptp(differences) == 0:
        return PairedDifference(mean, mean, mean)
    means = _resampled_means(differences, resamples, np.random.default_rng(seed))
    tail = _expanded_tail(_tail(comparisons), len(differences))
    low, high = np.quantile(means, [tail, 1 - tail])
    return PairedDifference(mean, float(low), float(high))


def resampled_difference(baseline: ArrayLike, candidate: ArrayLike, *, comparisons: int = 1) -> PairedDifference:
    """Return the percentile bootstrap interval of the difference in a quality that is not a mean, such as F1.

    The arrays contain the quality on each resample, [R]; both results use the same resamples (Efron and Tibshirani,
    1993, chapter 13). NaN values, for example from a resample that lacks a class, are ignored. ``mean``, the mean
    difference over the resamples, can differ from the difference on the original samples.
    """
    before, after = _paired(baseline, candidate)
    differences = (after - before)[np.isfinite(before) & np.isfinite(after)]
    if not differences.size:
        raise ValueError("the baseline's or the candidate's quality is NaN in every resample")
    low, high = np.quantile(differences, [tail := _tail(comparisons), 1 - tail])
    return PairedDifference(float(differences.mean()), float(low), float(high))


def _paired(baseline: ArrayLike, candidate: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    before, after = np.asarray(baseline, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if before.shape != after.shape or before.ndim != 1 or not before.size:
        raise ValueError(f"expected two non-empty lists of equal length, got shapes {before.shape} and {after.shape}")
    return before, after


def _differences(baseline: ArrayLike, candidate: ArrayLike) -> NDArray[np.float64]:
    before, after = _paired(baseline, candidate)
    differences = after - before
    if not np.isfinite(differences).all():
        raise ValueError("the results contain NaN or infinite values")
    return differences


def _score_low(gained: int, lost: int, samples: int, quantile: float) -> float:
    """Find the lower end of Tango's interval for ``(gained - lost) / samples`` by bisection."""
    estimate = (gained - lost) / samples

    def refused(difference: float) -> bool:
        # For a given difference, the maximum likelihood estimate of the lost fraction is the larger root of a
        # quadratic.
        linear = (2 * samples - gained + lost) * difference - gained - lost
        constant = 8 * samples * lost * difference * (1 - difference)
        share = (math.sqrt(max(0.0, linear**2 + constant)) - linear) / (4 * samples)
        variance = max(0.0, 2 * share + difference * (1 - difference)) / samples
        return estimate - difference > quantile * math.sqrt(variance)

    low, high = -1.0, estimate
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refused(middle) else (low, middle)
    return high


def _resampled_means(differences: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the mean of each resample, float64 [resamples]."""
    count = len(differences)
    step = max(1, _DRAWN_AT_ONCE // count)
    means = []
    for start in range(0, resamples, step):
        drawn = rng.integers(count, size=(min(step, resamples - start), count), dtype=np.uint32)
        means.append(differences[drawn].mean(axis=1))
    return np.concatenate(means)


def _expanded_tail(tail: float, samples: int) -> float:
    """Return the tail fraction that makes a bootstrap interval as wide as Student's t interval."""
    return NormalDist().cdf(math.sqrt(samples / (samples - 1)) * student_quantile(tail, samples - 1))


def student_quantile(share: float, freedom: float) -> float:
    """Return a quantile of Student's t distribution."""
    from scipy.special import stdtrit  # importing SciPy takes 0.3 s

    return float(stdtrit(freedom, share))
