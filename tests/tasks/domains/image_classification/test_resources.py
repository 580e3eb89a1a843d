"""What a deployed classifier needs besides the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from tasks.data.samples import Description
from tasks.data.sections import ImageFolder, Transforms
from tasks.domains.image_classification import ImageWorkload, TorchvisionWeights
from tasks.extensions import DOMAINS
from tasks.job import Job
from tasks.refs import CheckpointRef, DatasetRef


def written(folder: Path, sample_shape: tuple[int, int, int], **sections) -> dict[str, object]:
    store = ArtifactStore(folder / "store")
    described = Description(splits={"test": 1}, classes=("A", "é"), mean=(0.5,) * 3, std=(0.25,) * 3)
    with store.create("samples", "d" * 64, {}) as artifact:
        (artifact / "samples.json").write_text(described.model_dump_json())
    job = Job(
        workload=ImageWorkload.model_construct(name="demo", domain="image-classification", **sections),
        dataset=DatasetRef(kind="samples", digest="d" * 64, splits={"test": 1}, classes=2, sample_shape=sample_shape),
        checkpoint=CheckpointRef(kind="checkpoint", digest="c" * 64, parameters=1),
    )
    assert DOMAINS["image-classification"].write_resources(job, store, folder) == {
        "preprocessing": "preprocessing.json"
    }
    return json.loads((folder / "preprocessing.json").read_text())


@pytest.mark.slow
def test_an_image_classifier_gets_the_transforms_that_were_applied_and_not_what_the_file_left_out(tmp_path: Path):
    found = written(
        tmp_path,
        (3, 224, 224),
        data=ImageFolder(kind="image-folder", uri="photos", transforms=Transforms(preset="weights")),
        checkpoint=TorchvisionWeights(kind="torchvision-weights", weights="EfficientNet_B0_Weights.IMAGENET1K_V1"),
    )
    assert found["transforms"] == {
        "resize": 256,
        "crop": 224,
        "interpolation": "bicubic",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    }
