"""Quantizing an image classifier from its checkpoint to both runtimes, by every method that images know."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from storage.artifacts import ArtifactStore
from tasks.checkpoint import obtain
from tasks.models import example_inputs
from tasks.quantize import load, quantize
from tasks.refs import DatasetRef
from tasks.workload import Workload
from tests.tasks.quantize.conftest import IMAGES
from tests.tasks.quantize.words import call, same

STATIC: dict[str, Any] = {"calibration_batches": 1, "calibration_batch_size": 8}
RECIPES: dict[str, dict[str, Any]] = {
    "float": {"method": "none"},
    "float-channels-last": {"method": "none", "memory_format": "channels-last"},
    "static-eager": {"method": "static", "flow": "eager", **STATIC},
    "static-fx": {"method": "static", "flow": "fx", "engine": "onednn", **STATIC},
    "static-qnnpack": {"method": "static", "engine": "qnnpack", "weights": "per-tensor", **STATIC},
    "qat": {"method": "qat", "epochs": 1, "batch_size": 16},
    "dynamic": {"method": "dynamic", "modules": ["Linear"]},
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_was_saved_computes_what_was_converted(
    recipe: str, images_store: ArtifactStore, images_dataset: DatasetRef
) -> None:
    workload = Workload.model_validate(IMAGES | {"recipe": [{"name": name, **spec} for name, spec in RECIPES.items()]})
    checkpoint = obtain(workload, images_dataset, images_store)
    before = torch.backends.quantized.engine
    ref = quantize(workload, workload.recipe_named(recipe), images_dataset, checkpoint, images_store)
    assert torch.backends.quantized.engine == before
    folder = images_store.path(ref.kind, ref.digest)
    inputs = example_inputs(workload, images_dataset, images_store, batch_size=5)
    eager, script = call(load(folder, "eager"), inputs), call(load(folder, "torchscript"), inputs)
    if ref.method == "none":
        # Frozen float TorchScript has its batch norms folded.
        assert torch.allclose(eager[0], script[0], rtol=1e-3, atol=1e-4)
    else:
        assert same(eager, script)
    assert (ref.covered_share > 0) == (ref.method != "none")
