"""A candidate's quality against the baseline's on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from storage.artifacts import ArtifactStore
from storage.errors import MeasurementError
from tasks.job import Workspace
from tasks.paired import (
    PairedDifference,
    bootstrap_difference,
    resampled_difference,
    score_difference,
    serial_difference,
)
from tasks.results import Comparison, Contributions, Evaluation
from tasks.tensor_files import SAMPLES

_INTERVALS: dict[Contributions, Callable[[NDArray[np.float32], NDArray[np.float32]], PairedDifference]] = {
    "independent": bootstrap_difference,
    "right-or-wrong": score_difference,
    "serial": serial_difference,
    "resampled": resampled_difference,
}


def compare(baseline: Evaluation, candidate: Evaluation, store: ArtifactStore) -> Comparison:
    """Difference of quality with its paired 95% interval, and agreement of the predictions.

    Both read ``samples.safetensors``: ``quality``, float32 [N], each sample's contribution (its mean is the quality),
    and ``prediction``, int64 [N]. What the contributions are decides the interval. Where a file has no ``quality`` (one
    random sequence is no sample of anything), or a single one, there is no interval; where it has no ``prediction``
    there is no agreement.

    Raises
    ------
    MeasurementError
        The two were evaluated on different samples, or by different metrics.
    """
    if (baseline.quality_metric, baseline.samples, baseline.contributions) != (
        candidate.quality_metric,
        candidate.samples,
        candidate.contributions,
    ):
        raise MeasurementError(
            f"{_named(candidate)} cannot be compared to {_named(baseline)}.",
            hint="Evaluate both with the same [evaluate] settings on the same data.",
        )
    before, after = (
        load_file(store.path(evaluation.outputs.kind, evaluation.outputs.digest) / SAMPLES)
        for evaluation in (baseline, candidate)
    )
    difference = candidate.quality - baseline.quality
    low = high = agreement = None
    if (baseline.recipe, baseline.runtime) == (candidate.recipe, candidate.runtime):
        # Nothing is estimated: what a model differs by from itself is known.
        low = high = difference if "quality" in before else None
    elif "quality" in before and "quality" in after and len(before["quality"]) > 1:
        _, low, high = _INTERVALS[baseline.contributions](before["quality"], after["quality"])
    if "prediction" in before and "prediction" in after:
        agreement = float((before["prediction"] == after["prediction"]).mean())
    return Comparison(
        quality_difference=difference,
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


def _named(evaluation: Evaluation) -> str:
    return f"{evaluation.recipe}/{evaluation.runtime} ({evaluation.quality_metric} on {evaluation.samples} samples)"
