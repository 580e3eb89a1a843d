"""A tiny data set of images, made once, and contexts to quantize in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from storage.artifacts import ArtifactStore
from tasks.models import example_inputs
from tasks.prepare import prepare
from tasks.quantize.base import Context
from tasks.quantize.engine import quantized_engine
from tasks.quantize.warnings import without_deprecations
from tasks.refs import DatasetRef
from tasks.workload import Workload

IMAGES = {
    "schema_version": 1,
    "name": "tiny",
    "description": "tiny images",
    "purpose": "image-classification",
    "data": {
        "kind": "rendered-characters", "characters": "AHTX", "image_size": 16,
        "train": 48, "calibration": 16, "valid": 16, "test": 16,
    },
    "model": {"kind": "factory", "factory": "tests.tasks.quantize.networks:plain"},
    "checkpoint": {"kind": "seeded", "seed": 0},
    "recipe": [{"name": "float", "method": "none"}],
    "benchmark": {"baseline": "float/eager", "batch_size": 2},
}  # fmt: skip


@pytest.fixture(scope="session")
def images_workload() -> Workload:
    return Workload.model_validate(IMAGES)


@pytest.fixture(scope="session")
def images_store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return ArtifactStore(Path(tmp_path_factory.mktemp("images-store")))


@pytest.fixture(scope="session")
def images_dataset(images_workload: Workload, images_store: ArtifactStore) -> DatasetRef:
    return prepare(images_workload, images_store)


@pytest.fixture
def images_context(
    images_workload: Workload, images_store: ArtifactStore, images_dataset: DatasetRef
) -> Callable[..., Context]:
    def make(**changes: object) -> Context:
        examples = example_inputs(images_workload, images_dataset, images_store)
        parts = {"workload": images_workload, "dataset": images_dataset, "store": images_store}
        return Context(**{**parts, "example_inputs": examples, **changes})

    return make


@pytest.fixture
def engine() -> Iterator[str]:
    """The quantized engine that the core sets around every method."""
    with quantized_engine("x86"), without_deprecations(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield "x86"
