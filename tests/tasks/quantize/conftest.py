"""A tiny data set of images, made once, and float models to quantize."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from storage.artifacts import ArtifactStore
from tasks.quantize.engine import quantized_engine, without_deprecations
from tasks.quantize.operators import find_or_compile, load_libraries
from tasks.quantize.source import ModelSource
from tasks.values.job import Workspace
from tasks.workload import Workload
from tests.tasks import pipeline

IMAGES = {
    "schema_version": 1,
    "name": "tiny",
    "description": "tiny images",
    "domain": "image-classification",
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
def images_store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return ArtifactStore(Path(tmp_path_factory.mktemp("images-store")))


@pytest.fixture(scope="session")
def operators_loaded(images_store: ArtifactStore, compiled_operators: Path) -> Path:
    """The library of int8 operators in the store of images, loaded."""
    shutil.copytree(compiled_operators / "artifacts", images_store.root / "artifacts", dirs_exist_ok=True)
    library = find_or_compile(Workspace(images_store))
    load_libraries(library.parent)
    return library


@pytest.fixture
def source_of(images_store: ArtifactStore) -> Callable[..., ModelSource]:
    """The source of one of the networks, by name."""

    def make(network: str = "plain") -> ModelSource:
        model = {"kind": "factory", "factory": f"tests.tasks.quantize.networks:{network}"}
        return pipeline.source_of(Workload.model_validate(IMAGES | {"model": model}), images_store)

    return make


@pytest.fixture
def engine() -> Iterator[str]:
    """What methods find set around them."""
    with quantized_engine("x86"), without_deprecations(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield "x86"
