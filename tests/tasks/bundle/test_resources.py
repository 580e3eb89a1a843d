from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import BundleError
from tasks.bundle.golden import describe_golden, tolerance_share
from tasks.bundle.resources import write_resources
from tasks.domains.image_classification.sections import ImageFolder, TorchvisionWeights, Transforms
from tasks.quantize.methods.dynamic import DynamicRecipe
from tasks.quantize.methods.float import FloatRecipe
from tasks.quantize.methods.static import StaticRecipe
from tasks.refs import DatasetRef
from tests.tasks.test_gate import workload


def test_an_image_classifier_gets_its_normalization_and_class_names(tmp_path: Path):
    store = ArtifactStore(tmp_path / "store")
    with store.create("images", "d" * 64, {}) as folder:
        (folder / "images.json").write_text(json.dumps({"classes": ["A", "é"], "mean": [0.5] * 3, "std": [0.25] * 3}))
    dataset = DatasetRef(kind="images", digest="d" * 64, splits={"test": 1}, classes=2, sample_shape=(3, 8, 6))
    demo = workload().model_copy(update={"purpose": "image-classification"})
    assert write_resources(demo, dataset, store, tmp_path) == {"preprocessing": "preprocessing.json"}
    written = json.loads((tmp_path / "preprocessing.json").read_text())
    assert (written["classes"], written["height"], written["width"]) == (["A", "é"], 8, 6)


def test_a_float_model_must_be_reproduced_more_closely_than_a_quantized_one():
    whole = FloatRecipe(name="float", method="none")
    half = DynamicRecipe(name="half", method="dynamic", dtype="float16")
    int8 = StaticRecipe(name="int8", method="static")
    assert tolerance_share(whole) < tolerance_share(half) < tolerance_share(int8)


def test_golden_tensors_that_are_missing_or_not_finite_are_refused(tmp_path: Path):
    import numpy as np
    from safetensors.numpy import save_file

    recipe, path = FloatRecipe(name="float", method="none"), tmp_path / "golden.safetensors"
    good = {"input.inputs": np.zeros((2, 2), np.float32), "output.0": np.arange(4, dtype=np.float32)}
    save_file(good, path)
    golden = describe_golden(path, ["inputs"], recipe, "image-classification")
    assert golden.outputs[0]["name"] == "logits"
    assert golden.outputs[0]["tolerance"] == pytest.approx(3e-4)
    for bad in (
        {"output.0": good["output.0"]},
        good | {"output.0": np.full(4, np.nan, np.float32)},
        good | {"output.0": np.zeros(0, np.float32)},
        good | {"input.more": np.zeros(1, np.float32)},
    ):
        save_file(bad, path)
        with pytest.raises(BundleError):
            describe_golden(path, ["inputs"], recipe, "image-classification")


def test_an_image_classifier_gets_the_transforms_that_were_applied_and_not_what_the_file_left_out(tmp_path: Path):
    store = ArtifactStore(tmp_path / "store")
    with store.create("images", "d" * 64, {}) as folder:
        (folder / "images.json").write_text(json.dumps({"classes": ["A", "B"], "mean": [0.5] * 3, "std": [0.25] * 3}))
    dataset = DatasetRef(kind="images", digest="d" * 64, splits={"test": 1}, classes=2, sample_shape=(3, 224, 224))
    demo = workload().model_copy(
        update={
            "purpose": "image-classification",
            "data": ImageFolder(kind="image-folder", uri="photos", transforms=Transforms(preset="weights")),
            "checkpoint": TorchvisionWeights(
                kind="torchvision-weights", weights="EfficientNet_B0_Weights.IMAGENET1K_V1"
            ),
        }
    )

    write_resources(demo, dataset, store, tmp_path)

    applied = json.loads((tmp_path / "preprocessing.json").read_text())["transforms"]
    assert applied == {
        "resize": 256,
        "crop": 224,
        "interpolation": "bicubic",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    }
