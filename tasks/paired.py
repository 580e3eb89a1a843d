"""The difference between two results on the same samples, with a 95% interval.

Samples keep their pairing, so that what is hard for both cancels. docs/quality.md says which interval is right.
"""

from __future__ import annotations

import math
from pkgutil import resolve_name
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_CONFIDENCE = 0.95
_TAIL = (1 - _CONFIDENCE) / 2
RIGHT, WRONG = 100.0, 0.0
_BLOCKS = 10
# Halvings of an interval no wider than 2: beyond the last digit of a double.
_HALVINGS = 60
# Numbers drawn at a time: bounds memory at some tens of megabytes whatever the number of samples.
_DRAWN_AT_ONCE = 1 << 20


class PairedDifference(NamedTuple):
    """Mean of candidate - baseline, and the ends of its 95% interval."""

    mean: float
    low: float
    high: float


def score_difference(baseline: ArrayLike, candidate: ArrayLike) -> PairedDifference:
    """Score interval of the difference between two shares of right answers, in percentage points.

    Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design",
    Statistics in Medicine 17, 1998: all differences that a score test at 5% does not refuse, with the variance
    estimated under each of them. Where both are right and wrong on the same N samples the ends are
    ±z² / (N + z²): having seen no difference does not say that there is none.

    Parameters
    ----------
    baseline, candidate
        [N]: 100 where a sample is right and 0 where it is wrong, in the same order.

    Raises
    ------
    ValueError
        The arrays are empty, of different lengths, or hold other numbers.
    """
    before, after = _paired(baseline, candidate)
    if not np.isin([before, after], [RIGHT, WRONG]).all():
        raise ValueError(f"expected {RIGHT:g} where a sample is right and {WRONG:g} where it is wrong")
    gained, lost, samples = int((after > before).sum()), int((after < before).sum()), len(before)
    low, high = _score_low(gained, lost, samples), -_score_low(lost, gained, samples)
    return PairedDifference(*(RIGHT * share for share in ((gained - lost) / samples, low, high)))


def serial_difference(baseline: ArrayLike, candidate: ArrayLike) -> PairedDifference:
    """Student's interval of the mean difference between two series whose neighbours depend on each other.

    The series is cut into ten stretches of equal length, whose means are nearly independent once a stretch is long
    beside the memory of the series. Ten is the fewest that Schmeiser, "Batch size effects in the analysis of simulation
    output", Operations Research 30(3), 1982, recommends: more blocks are shorter, and their intervals too narrow for
    short series, while fewer than ten make them wider for no gain. As their number is fixed, blocks grow with the
    series.

    Parameters
    ----------
    baseline, candidate
        [N], N at least 2: the numbers of each place in the series, in order, of any unit.

    Raises
    ------
    ValueError
        The arrays are shorter than that, of different lengths, or hold NaN or infinities.
    """
    differences = _differences(baseline, candidate)
    if len(differences) < 2:
        raise ValueError("a single number has no interval")
    blocks = np.array_split(differences, min(_BLOCKS, len(differences)))
    means = np.array([block.mean() for block in blocks])
    mean = float(differences.mean())
    half = -student_quantile(_TAIL, len(means) - 1) * float(means.std(ddof=1)) / math.sqrt(len(means))
    return PairedDifference(mean, mean - half, mean + half)


def bootstrap_difference(
    baseline: ArrayLike, candidate: ArrayLike, *, resamples: int = 10_000, seed: int = 0
) -> PairedDifference:
    """Bootstrap interval of the mean difference between two results on the same independent samples.

    Samples are drawn with replacement and keep their pairing (Efron and Tibshirani, "An Introduction to the Bootstrap",
    1993, chapters 6 and 13). The ends are percentiles, taken a little further out so that the interval is not too
    narrow for few samples: Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician
    69(4), 2015, section 5.3 (expanded percentile interval).

    Parameters
    ----------
    baseline, candidate
        [N]: a number per sample, in the same order, of any unit.
    seed
        Equal seeds give equal intervals.

    Raises
    ------
    ValueError
        The arrays are empty, of different lengths, or hold NaN or infinities.
    """
    differences = _differences(baseline, candidate)
    mean = float(differences.mean())
    if np.ptp(differences) == 0:
        return PairedDifference(mean, mean, mean)
    means = _resampled_means(differences, resamples, np.random.default_rng(seed))
    tail = _expanded_tail(_TAIL, len(differences))
    low, high = np.quantile(means, [tail, 1 - tail])
    return PairedDifference(mean, float(low), float(high))


def resampled_difference(baseline: ArrayLike, candidate: ArrayLike) -> PairedDifference:
    """Percentile bootstrap interval of the difference in a quality that is no mean of samples, such as F1.

    Efron and Tibshirani, 1993, chapter 13; samples keep their pairing, for both were computed on the same resamples.
    ``mean`` is that over the resamples, not the difference on the samples themselves.

    Parameters
    ----------
    baseline, candidate
        [R]: the quality on each resample; NaN where a resample has none (no row of a class, say), which is left out.

    Raises
    ------
    ValueError
        The arrays are empty or of different lengths, or no resample has a quality in both.
    """
    before, after = _paired(baseline, candidate)
    differences = (after - before)[np.isfinite(before) & np.isfinite(after)]
    if not differences.size:
        raise ValueError("no resample has a quality in both")
    low, high = np.quantile(differences, [_TAIL, 1 - _TAIL])
    return PairedDifference(float(differences.mean()), float(low), float(high))


def _paired(baseline: ArrayLike, candidate: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    before, after = np.asarray(baseline, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if before.shape != after.shape or before.ndim != 1 or not before.size:
        raise ValueError(f"expected two lists of equal length, got shapes {before.shape} and {after.shape}")
    return before, after


def _differences(baseline: ArrayLike, candidate: ArrayLike) -> NDArray[np.float64]:
    before, after = _paired(baseline, candidate)
    differences = after - before
    if not np.isfinite(differences).all():
        raise ValueError("the results hold NaN or infinite values")
    return differences


def _score_low(gained: int, lost: int, samples: int) -> float:
    """Lower end of Tango's interval for (gained - lost) / samples, by bisection."""
    estimate, quantile = (gained - lost) / samples, NormalDist().inv_cdf(1 - _TAIL)

    def refused(difference: float) -> bool:
        # Maximum likelihood of the share that is lost, given the difference: the larger root of a quadratic.
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
    """Mean of each resample, float64 [resamples]; counts are drawn, at the cost of the distinct values."""
    values, counts = np.unique(differences, return_counts=True)
    step = max(1, _DRAWN_AT_ONCE // len(values))
    means = []
    for start in range(0, resamples, step):
        drawn = rng.multinomial(len(differences), counts / counts.sum(), size=min(step, resamples - start))
        means.append(drawn @ values / len(differences))
    return np.concatenate(means)


def _expanded_tail(tail: float, samples: int) -> float:
    """The share to cut off at each end, so that the interval is as wide as Student's for a normal mean."""
    return NormalDist().cdf(math.sqrt(samples / (samples - 1)) * student_quantile(tail, samples - 1))


def student_quantile(share: float, freedom: float) -> float:
    """Return a quantile of Student's t."""
    return float(resolve_name("scipy.special:stdtrit")(freedom, share))  # by name: SciPy takes a third of a second
