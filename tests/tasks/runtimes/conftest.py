"""Sources of tiny models with a store that a module's tests share: an export takes seconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts import ArtifactStore
from tasks.values.job import Job
from tasks.workload import Workload
from tests.tasks import pipeline
from tests.tasks.quantize.conftest import IMAGES
from tests.tasks.text_workloads import text_workload, write_corpus

FLOAT = {"name": "float", "method": "none", "runtimes": ["eager"]}
MakeJob = Callable[..., Job[Workload]]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return ArtifactStore(Path(tmp_path_factory.mktemp("runtimes-store")))


@pytest.fixture(scope="session")
def store_with_operators(store: ArtifactStore, compiled_operators: Path) -> ArtifactStore:
    """The same store, with the int8 operators in it."""
    shutil.copytree(compiled_operators / "artifacts", store.root / "artifacts", dirs_exist_ok=True)
    return store


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory, store: ArtifactStore) -> MakeJob:
    """A tiny word language model with the given recipes besides float."""
    corpus = write_corpus(Path(tmp_path_factory.mktemp("corpus")))

    def make(*recipes: dict[str, Any], **changes: Any) -> Job[Workload]:
        return pipeline.job_of(text_workload(corpus, recipe=[FLOAT, *recipes], **changes), store)

    return make


@pytest.fixture(scope="session")
def images(store: ArtifactStore) -> MakeJob:
    """A tiny image classifier, one of the networks by name, with the given recipes besides float."""

    def make(*recipes: dict[str, Any], network: str = "plain") -> Job[Workload]:
        model = {"kind": "factory", "factory": f"tests.tasks.quantize.networks:{network}"}
        document = IMAGES | {"model": model, "recipe": [FLOAT, *recipes]}
        return pipeline.job_of(Workload.model_validate(document), store)

    return make
