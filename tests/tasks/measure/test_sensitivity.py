from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from tasks.measure.sensitivity import sensitivity
from tasks.values.job import Job, Workspace
from tasks.workload import Workload
from tests.tasks.pipeline import job_of
from tests.tasks.quantize.conftest import IMAGES
from tests.tasks.quantize.words import words_workload

EVERY = {"m0", "m3", "m5", "m9", "m11"}
RECIPES = [
    {"name": "float", "method": "none"},
    {"name": "static", "method": "static", "calibration_batches": 2, "calibration_batch_size": 8},
    {"name": "dynamic", "method": "dynamic", "modules": ["Linear"]},
]
Made = tuple[Job[Workload], Workspace]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    store = ArtifactStore(Path(tmp_path_factory.mktemp("sensitivity")))
    workload = Workload.model_validate({**IMAGES, "recipe": RECIPES})
    return job_of(workload, store), Workspace(store)


@pytest.mark.parametrize(
    ("recipe", "modules"),
    [("static", EVERY), ("dynamic", {"m9", "m11"})],
)
@pytest.mark.slow
def test_every_quantized_layer_is_ranked_the_worst_first(made: Made, recipe: str, modules: set[str]) -> None:
    job, workspace = made
    ranking = sensitivity(job, job.workload.recipe_named(recipe), workspace)
    assert {layer.module for layer in ranking} == modules
    assert [layer.rank for layer in ranking] == list(range(1, len(modules) + 1))
    levels = [layer.sqnr_db for layer in ranking]
    assert levels == sorted(levels)
    assert all(15 < level < 80 for level in levels)


def test_a_float_recipe_has_no_sensitivity(made: Made) -> None:
    job, workspace = made
    with pytest.raises(ConfigurationError, match="does not quantize"):
        sensitivity(job, job.workload.recipe_named("float"), workspace)


@pytest.mark.slow
def test_an_embedding_is_ranked_like_other_layers(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    workload = words_workload(tmp_path)
    job, workspace = job_of(workload, store), Workspace(store)
    recipe = job.workload.recipe_named("int8-embedding8")
    ranking = sensitivity(job, recipe, workspace)
    assert {layer.type for layer in ranking} == {"Embedding", "LSTM", "Linear"}
