from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from tasks.data.evaluation import Quality
from tasks.extensions import DOMAINS
from tasks.job import Job, Workspace
from tasks.sensitivity import keep_effects, sensitivity, study
from tasks.workload import Workload
from tests.tasks.pipeline import job_of
from tests.tasks.quantize.conftest import IMAGES

EVERY = {"m0", "m3", "m5", "m9", "m11"}
RECIPES = [
    {"name": "float", "method": "none"},
    {"name": "eager", "method": "static", "graph": "eager", "calibration_batches": 2, "calibration_batch_size": 8},
    {"name": "fx", "method": "static", "graph": "fx", "calibration_batches": 2, "calibration_batch_size": 8},
    {
        "name": "qnnpack",
        "method": "static",
        "engine": "qnnpack",
        "weights": "per-tensor",
        "calibration_batches": 2,
        "calibration_batch_size": 8,
    },
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
    [("eager", EVERY), ("fx", EVERY), ("qnnpack", EVERY), ("dynamic", {"m9", "m11"})],
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
def test_each_evaluation_of_a_study_is_one_pass_as_the_model_is_deployed(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[bool] = []
    domain = type(DOMAINS["image-classification"])
    real = domain.evaluate

    def counted(self: Any, *given: Any, apart: bool = False) -> Quality:
        passes.append(apart)
        return real(self, *given, apart=apart)

    job, workspace = made
    recipe = job.workload.recipe_named("dynamic")
    ranking = sensitivity(job, recipe, workspace)
    monkeypatch.setattr(domain, "evaluate", counted)
    keep_effects(job, recipe, ranking, (0, 1), workspace)
    assert passes == [False, True, True]  # float, int8, int8 with one layer kept float


@pytest.mark.slow
def test_keeping_layers_float_costs_size_and_all_of_them_gives_the_float_quality(made: Made) -> None:
    job, workspace = made
    recipe = job.workload.recipe_named("eager")
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
def test_a_layer_with_a_coarse_weight_ranks_first(made: Made) -> None:
    from tasks.sensitivity import _Noise

    linear = torch.nn.Linear(4, 4)
    fine, coarse = _Noise(linear), _Noise(linear)
    inputs = torch.randn(8, 4)
    with torch.no_grad():
        output = linear(inputs)
        fine(linear, (inputs,), output + 0.001)
        coarse(linear, (inputs,), output + 0.1)
    assert coarse.sqnr_db == pytest.approx(fine.sqnr_db - 40, abs=0.1)


@pytest.mark.slow
def test_recurrent_layers_are_ranked_as_well(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    workload = Workload.model_validate(
        {
            "schema_version": 1,
            "name": "sequence",
            "description": "a bare LSTM",
            "domain": "sequence",
            "data": {"kind": "random-sequence", "seed": 1, "length": 5},
            "model": {"kind": "lstm", "dimension": 8},
            "checkpoint": {"kind": "seeded", "seed": 1},
            "recipe": [{"name": "float", "method": "none"}, {"name": "int8", "method": "dynamic"}],
            "benchmark": {"baseline": "float/eager"},
        }
    )
    job, workspace = job_of(workload, store), Workspace(store)
    (layer,) = sensitivity(job, job.workload.recipe_named("int8"), workspace)
    assert layer.type == "LSTM"
    # The only layer there is: keeping it float leaves nothing to quantize.
    (studied,) = study(job, job.workload.recipe_named("int8"), workspace)
    assert studied.kept_float_quality == 0
    assert 15 < layer.sqnr_db < 80


@pytest.mark.slow
def test_a_study_says_what_keeping_the_worst_layers_gives_back(made: Made) -> None:
    job, workspace = made
    layers = study(job, job.workload.recipe_named("eager"), workspace)
    assert [layer.rank for layer in layers if layer.kept_float_quality is not None] == [1, 2, 4]
    assert len(layers) == 5


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.slow
def test_an_embedding_is_ranked_and_can_be_kept_float_like_other_layers(tmp_path: Path, bits: int) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    store = ArtifactStore(tmp_path / "store")
    workload = Workload.model_validate(
        {
            "schema_version": 1,
            "name": "words",
            "description": "a tiny language model",
            "domain": "language-model",
            "data": {"kind": "text", "uri": str(tmp_path)},
            "model": {"kind": "word-lm", "embedding_size": 16, "hidden_size": 8, "layers": 1},
            "checkpoint": {"kind": "seeded"},
            "recipe": [
                {"name": "float", "method": "none"},
                {"name": "embedding", "method": "dynamic", "embedding_bits": bits},
            ],
        }
    )
    job, workspace = job_of(workload, store), Workspace(store)
    recipe = job.workload.recipe_named("embedding")
    ranking = sensitivity(job, recipe, workspace)
    assert {layer.type for layer in ranking} == {"Embedding", "LSTM", "Linear"}
    # Whichever layers come first, the others can be quantized without them.
    for order in (ranking, ranking[::-1]):
        effects = keep_effects(job, recipe, order, (1, 2, 3), workspace)
        assert [effect.kept for effect in effects] == [1, 2, 3]
        assert effects[-1].quality == effects[-1].float_quality
        assert len({effect.size_bytes for effect in effects}) == 3


@pytest.mark.slow
def test_only_what_has_a_rank_kept_float_is_not_all_float(made: Made) -> None:
    job, workspace = made
    recipe = job.workload.recipe_named("dynamic")
    ranking = sensitivity(job, recipe, workspace)
    (first,) = keep_effects(job, recipe, ranking[:1], (1,), workspace)
    every = keep_effects(job, recipe, ranking, (2,), workspace)[0]
    # So small a layer is smaller float.
    assert first.size_bytes != every.size_bytes
