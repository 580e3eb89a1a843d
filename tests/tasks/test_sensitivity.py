from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from tasks.job import Job, Workspace
from tasks.sensitivity import keep_effects, sensitivity, study
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


@pytest.mark.slow
def test_keeping_layers_float_costs_size_and_all_of_them_gives_the_float_quality(made: Made) -> None:
    job, workspace = made
    recipe = job.workload.recipe_named("static")
    ranking = sensitivity(job, recipe, workspace)
    none, one, every = keep_effects(job, recipe, ranking, (0, 1, 5, 99), workspace)
    assert (none.kept, one.kept, every.kept) == (0, 1, 5)
    assert one.modules == (ranking[0].module,)
    assert none.size_bytes < every.size_bytes
    assert every.quality == every.float_quality


def test_a_float_recipe_has_no_sensitivity(made: Made) -> None:
    job, workspace = made
    with pytest.raises(ConfigurationError, match="does not quantize"):
        sensitivity(job, job.workload.recipe_named("float"), workspace)


@pytest.mark.slow
def test_a_study_says_what_keeping_the_worst_layers_gives_back(made: Made) -> None:
    job, workspace = made
    layers = study(job, job.workload.recipe_named("static"), workspace)
    assert [layer.rank for layer in layers if layer.kept_float_quality is not None] == [1, 2, 4]
    assert len(layers) == 5


@pytest.mark.slow
def test_an_embedding_is_ranked_and_can_be_kept_float_like_other_layers(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    workload = words_workload(tmp_path)
    job, workspace = job_of(workload, store), Workspace(store)
    recipe = job.workload.recipe_named("int8-embedding8")
    ranking = sensitivity(job, recipe, workspace)
    assert {layer.type for layer in ranking} == {"Embedding", "LSTM", "Linear"}
    # Whichever layers come first, the others can be quantized without them.
    for order in (ranking, ranking[::-1]):
        effects = keep_effects(job, recipe, order, (1, 2, 3), workspace)
        assert [effect.kept for effect in effects] == [1, 2, 3]
        assert effects[-1].quality == effects[-1].float_quality
        assert len({effect.size_bytes for effect in effects}) == 3
