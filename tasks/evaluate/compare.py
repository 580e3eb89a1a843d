"""A candidate's quality against the baseline's on the same samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from storage.artifacts import ArtifactStore
from storage.errors import MeasurementError
from tasks.evaluate.paired import paired_difference
from tasks.golden import SAMPLES
from tasks.job import Workspace
from tasks.results import Comparison, Evaluation


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
    before, after = _samples(baseline, store), _samples(candidate, store)
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


def _samples(evaluation: Evaluation, store: ArtifactStore) -> dict[str, NDArray[np.generic]]:
    return load_file(store.path(evaluation.outputs.kind, evaluation.outputs.digest) / SAMPLES)


def _named(evaluation: Evaluation) -> str:
    return f"{evaluation.recipe}/{evaluation.runtime} ({evaluation.quality_metric} on {evaluation.samples} samples)"
