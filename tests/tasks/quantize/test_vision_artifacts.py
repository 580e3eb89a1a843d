"""A quantized image model through the store: found again, opened eager and scripted, and run without this project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from storage.artifacts import ArtifactStore
from tasks.checkpoint import obtain
from tasks.models import example_inputs
from tasks.quantize import load, quantize
from tasks.quantize.methods.qat import QatRecipe
from tasks.quantize.methods.static import StaticRecipe
from tasks.refs import DatasetRef
from tasks.workload import Workload

STATIC = StaticRecipe(name="static", method="static", calibration_batches=1, calibration_batch_size=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        STATIC,
        STATIC.model_copy(update={"flow": "fx"}),
        STATIC.model_copy(update={"weights": "per-tensor", "engine": "fbgemm"}),
        QatRecipe(name="qat", method="qat", epochs=1, batch_size=16),
        QatRecipe(name="qat-fx", method="qat", flow="fx", epochs=1, batch_size=16),
    ],
    ids=["eager", "fx", "fbgemm", "qat", "qat-fx"],
)
def test_eager_and_script_give_the_same_bits_and_the_script_needs_torch_alone(
    recipe: StaticRecipe | QatRecipe,
    images_workload: Workload,
    images_store: ArtifactStore,
    images_dataset: DatasetRef,
    tmp_path: Path,
) -> None:
    checkpoint = obtain(images_workload, images_dataset, images_store)
    made = quantize(images_workload, recipe, images_dataset, checkpoint, images_store)
    assert quantize(images_workload, recipe, images_dataset, checkpoint, images_store) == made
    assert made.flow == ("fx" if recipe.flow == "fx" else "eager")
    assert made.covered_share == 1
    folder = images_store.path(made.kind, made.digest)
    images = example_inputs(images_workload, images_dataset, images_store)["images"]
    with torch.no_grad():
        expected = load(folder, "eager")(images)
        assert torch.equal(load(folder, "torchscript")(images), expected)
    torch.save((images, expected), tmp_path / "golden.pt")
    code = (
        "import sys, torch; torch.backends.quantized.engine = sys.argv[3]; model = torch.jit.load(sys.argv[1]); "
        "images, expected = torch.load(sys.argv[2]); "
        "assert torch.equal(model(images), expected); assert 'tasks' not in sys.modules"
    )
    arguments = [str(folder / "model.ts"), str(tmp_path / "golden.pt"), recipe.engine]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
