"""Two evaluations that were not made on the same samples are not compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from storage.artifacts import ArtifactStore
from storage.errors import MeasurementError
from tasks.evaluate import compare
from tasks.evaluate.outputs import write_outputs
from tasks.refs import CandidateRef
from tasks.results import Evaluation


def evaluation(store: ArtifactStore, recipe: str, quality: list[float], prediction: list[int]) -> Evaluation:
    quantized = CandidateRef(
        kind="quantized", digest=recipe, recipe=recipe, method="none", engine="x86", size_bytes={"eager": 1}
    )
    samples = {"quality": torch.tensor(quality), "prediction": torch.tensor(prediction)}
    inputs = {"x": torch.zeros(1)}
    return Evaluation(
        recipe=recipe,
        runtime="eager",
        quality_metric="top1",
        quality=sum(quality) / len(quality),
        higher_is_better=True,
        metrics={},
        samples=len(quality),
        outputs=write_outputs(quantized, "eager", inputs, (torch.ones(1),), samples, store),
    )


def test_agreement_is_the_share_of_equal_predictions(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    before = evaluation(store, "float", [100.0, 100.0, 0.0, 0.0], [1, 2, 3, 4])
    after = evaluation(store, "int8", [100.0, 0.0, 0.0, 0.0], [1, 3, 3, 4])
    comparison = compare(before, after, store)
    assert comparison.agreement == 0.75
    assert comparison.quality_difference == -25
    low, high = comparison.quality_difference_low, comparison.quality_difference_high
    assert low is not None
    assert high is not None
    assert low <= -25 <= high


def test_different_samples_are_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    before = evaluation(store, "float", [100.0, 0.0], [1, 2])
    after = evaluation(store, "int8", [100.0, 0.0, 0.0], [1, 2, 3])
    with pytest.raises(MeasurementError, match="int8/eager"):
        compare(before, after, store)


def test_the_same_outputs_are_written_once(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    first = evaluation(store, "float", [1.0], [1])
    assert evaluation(store, "float", [1.0], [1]).outputs == first.outputs
    assert evaluation(store, "float", [2.0], [1]).outputs != first.outputs
