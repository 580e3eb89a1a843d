"""Interval of the difference between two candidates that were evaluated on the same samples."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Numbers drawn at a time: bounds memory at some tens of megabytes whatever the number of samples.
_DRAWN_AT_ONCE = 1 << 20


class PairedDifference(NamedTuple):
    """Mean of candidate - baseline, and the ends of its interval."""

    mean: float
    low: float
    high: float


def paired_difference(
    baseline: npt.ArrayLike,
    candidate: npt.ArrayLike,
    *,
    clusters: npt.ArrayLike | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    confidence: float = 0.95,
) -> PairedDifference:
    """Bootstrap interval of the mean difference between two results on the same samples.

    Samples (or clusters of them) are drawn with replacement and keep their pairing, so that what is hard for both
    candidates cancels (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 6 and 13). The ends
    are percentiles, taken a little further out so that the interval is not too narrow for few samples: Hesterberg,
    "What Teachers Should Know About the Bootstrap", The American Statistician 69(4), 2015, section 5.3 (expanded
    percentile interval).

    Parameters
    ----------
    baseline, candidate
        [N]: a number per sample, in the same order, of any unit.
    clusters
        [N]: which samples belong together and are only drawn together; each alone where left out.
    resamples
        Number of bootstrap resamples.
    seed
        Equal seeds give equal intervals.
    confidence
        Share of such intervals that should cover the true difference.

    Raises
    ------
    ValueError
        The arrays are empty, of different lengths, or hold NaN or infinities.
    """
    before, after = np.asarray(baseline, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if before.shape != after.shape or before.ndim != 1 or not before.size:
        raise ValueError(f"expected two lists of equal length, got shapes {before.shape} and {after.shape}")
    differences = after - before
    if not np.isfinite(differences).all():
        raise ValueError("the results hold values that are no numbers")
    mean = float(differences.mean())
    totals, sizes = _units(differences, clusters)
    if len(totals) < 2 or np.ptp(differences) == 0:
        return PairedDifference(mean, mean, mean)
    means = _resampled_means(totals, sizes, resamples, np.random.default_rng(seed))
    tail = _expanded_tail((1 - confidence) / 2, len(totals))
    low, high = np.quantile(means, [tail, 1 - tail])
    return PairedDifference(mean, float(low), float(high))


def _units(differences: Floats, clusters: npt.ArrayLike | None) -> tuple[Floats, Floats]:
    """Sum and number of samples of each unit that is drawn as one."""
    if clusters is None:
        return differences, np.ones_like(differences)
    names = np.asarray(clusters)
    if names.shape != differences.shape:
        raise ValueError(f"expected {len(differences)} cluster names, got shape {names.shape}")
    _, members = np.unique(names, return_inverse=True)
    totals = np.bincount(members, weights=differences)
    return np.asarray(totals, dtype=np.float64), np.asarray(np.bincount(members), dtype=np.float64)


def _resampled_means(totals: Floats, sizes: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """float64 [resamples]: mean over each resample of the units.

    How often each distinct unit is drawn is multinomial; for results that take few values, as right and wrong do, this
    costs the number of values instead of the number of samples.
    """
    kinds, counts = np.unique(np.stack([totals, sizes]), axis=1, return_counts=True)
    share = counts / counts.sum()
    step = max(1, _DRAWN_AT_ONCE // kinds.shape[1])
    means: list[Floats] = []
    for start in range(0, resamples, step):
        drawn = rng.multinomial(len(totals), share, size=min(step, resamples - start))
        summed, size = (drawn @ kinds.T).T
        means.append(summed / size)
    return np.concatenate(means)


def _expanded_tail(tail: float, units: int) -> float:
    """The share to cut off at each end, so that the interval is as wide as Student's for a normal mean."""
    from scipy.stats import t  # late: half a second

    return NormalDist().cdf(math.sqrt(units / (units - 1)) * float(t.ppf(tail, units - 1)))
