from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks.quantize.source import ModelSource, calibrate
from tasks.quantize.spec import Calibration
from tasks.values.job import Progress, Workspace, silent
from tasks.values.refs import Architecture, DatasetRef

THREE = Calibration("min-max", batches=3, batch_size=3)
NOTHING = Architecture(domain="", model={}, folder="", dataset=DatasetRef(kind="", digest="", splits={}))


def source_of(batches: Iterable[tuple[Tensor, ...]], folder: Path, progress: Progress = silent) -> ModelSource:
    workspace = Workspace(ArtifactStore(folder), progress)
    given = partial(lambda size: iter(batches))
    return ModelSource("tiny", nn.Identity, {}, {}, NOTHING, {}, workspace, calibration=given)


def test_an_empty_calibration_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match=r'"tiny" has no calibration samples.*data.calibration'):
        calibrate(nn.Linear(2, 2), source_of((), tmp_path), THREE)


def test_outputs_that_are_not_finite_are_refused_with_their_batch(tmp_path: Path) -> None:
    batches = [(torch.ones(1, 2),), (torch.full((1, 2), float("nan")),)]
    with pytest.raises(QuantizationError, match=r"NaN or infinity.*calibration batch 2"):
        calibrate(nn.Linear(2, 2), source_of(batches, tmp_path), THREE)
