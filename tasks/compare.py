"""A candidate's quality against the baseline's on the same samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import load_file

from storage.artifacts import ArtifactStore
from storage.errors import MeasurementError
from tasks.job import Workspace
from tasks.results import Comparison, Evaluation
from tasks.tensor_files import SAMPLES

_CONFIDENCE = 0.95
# Numbers drawn at a time: bounds memory at some tens of megabytes whatever the number of samples.
_DRAWN_AT_ONCE = 1 << 20


class PairedDifference(NamedTuple):
    """Mean of candidate - baseline, and the ends of its 95% interval."""

    mean: float
    low: float
    high: float


def compare(baseline: Evaluation, candidate: Evaluation, store: ArtifactStore) -> Comparison:
    """Difference of quality with its paired 95% interval, and agreement of the predictions.

    Both read ``samples.safetensors``: ``quality``, float32 [N], each sample's contribution (its mean is the quality),
    and ``prediction``, int64 [N]. Where a file has no ``quality`` (one random sequence is no sample of anything) there
    is no interval; where it has no ``prediction`` there is no agreement.

    Raises
    ------
    MeasurementError
        The two were evaluated on different samples, or by different metrics.
    """
    if baseline.quality_metric != candidate.quality_metric or baseline.samples != candidate.samples:
        raise MeasurementError(
            f"{_named(candidate)} cannot be compared to {_named(baseline)}.",
            hint="Evaluate both with the same [evaluate] settings on the same data.",
        )
    before, after = (
        load_file(store.path(evaluation.outputs.kind, evaluation.outputs.digest) / SAMPLES)
        for evaluation in (baseline, candidate)
    )
    low = high = agreement = None
    if "quality" in before and "quality" in after:
        _, low, high = paired_difference(before["quality"], after["quality"])
    if "prediction" in before and "prediction" in after:
        agreement = float((before["prediction"] == after["prediction"]).mean())
    return Comparison(
        quality_difference=candidate.quality - baseline.quality,
        quality_difference_low=low,
        quality_difference_high=high,
        agreement=agreement,
    )


def compare_all(baseline: Evaluation, candidates: Sequence[Evaluation], workspace: Workspace) -> list[Comparison]:
    """Compare each candidate with the baseline, in their order; see `compare`."""
    compared = []
    for number, candidate in enumerate(candidates, start=1):
        compared.append(compare(baseline, candidate, workspace.store))
        workspace.progress(number, len(candidates), "candidates")
    return compared


def paired_difference(
    baseline: ArrayLike, candidate: ArrayLike, *, resamples: int = 10_000, seed: int = 0
) -> PairedDifference:
    """Bootstrap interval of the mean difference between two results on the same samples.

    Samples are drawn with replacement and keep their pairing, so that what is hard for both candidates cancels (Efron
    and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 6 and 13). The ends are percentiles, taken a
    little further out so that the interval is not too narrow for few samples: Hesterberg, "What Teachers Should Know
    About the Bootstrap", The American Statistician 69(4), 2015, section 5.3 (expanded percentile interval).

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
    before, after = np.asarray(baseline, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if before.shape != after.shape or before.ndim != 1 or not before.size:
        raise ValueError(f"expected two lists of equal length, got shapes {before.shape} and {after.shape}")
    differences = after - before
    if not np.isfinite(differences).all():
        raise ValueError("the results hold NaN or infinite values")
    mean = float(differences.mean())
    if np.ptp(differences) == 0:
        return PairedDifference(mean, mean, mean)
    means = _resampled_means(differences, resamples, np.random.default_rng(seed))
    tail = _expanded_tail((1 - _CONFIDENCE) / 2, len(differences))
    low, high = np.quantile(means, [tail, 1 - tail])
    return PairedDifference(mean, float(low), float(high))


def _resampled_means(differences: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """float64 [resamples]: mean of each resample.

    How often each distinct value is drawn is multinomial; for results that take few values, as right and wrong do, this
    costs the number of values instead of the number of samples.
    """
    values, counts = np.unique(differences, return_counts=True)
    step = max(1, _DRAWN_AT_ONCE // len(values))
    means = []
    for start in range(0, resamples, step):
        drawn = rng.multinomial(len(differences), counts / counts.sum(), size=min(step, resamples - start))
        means.append(drawn @ values / len(differences))
    return np.concatenate(means)


def _expanded_tail(tail: float, samples: int) -> float:
    """The share to cut off at each end, so that the interval is as wide as Student's for a normal mean."""
    from scipy.stats import t  # late: half a second

    return NormalDist().cdf(math.sqrt(samples / (samples - 1)) * float(t.ppf(tail, samples - 1)))


def _named(evaluation: Evaluation) -> str:
    return f"{evaluation.recipe}/{evaluation.runtime} ({evaluation.quality_metric} on {evaluation.samples} samples)"
