"""Candidates of a tiny word language model by every recipe, for both torch runtimes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks.data.weights import load_state
from tasks.runtimes.base import CandidateFiles, Opened
from tasks.values.job import Job
from tasks.values.refs import CandidateRef, CheckpointRef
from tasks.workload import Workload
from tests.tasks.pipeline import build, build_model, converted, example_inputs, job_of, opened
from tests.tasks.quantize.words import RECIPES, call, same, words_workload


@dataclass(frozen=True)
class Candidates:
    job: Job[Workload]
    store: ArtifactStore

    def build(self, recipe: str, runtime: str = "eager") -> CandidateRef:
        return build(self.job, recipe, runtime, self.store)

    def open(self, recipe: str, runtime: str = "eager") -> Opened:
        return opened(self.build(recipe, runtime), self.store)

    def module(self, recipe: str) -> torch.nn.Module:
        return converted(self.job, recipe, self.store)

    def script(self, recipe: str) -> Path:
        return CandidateFiles.find(self.build(recipe, "torchscript"), self.store).folder / "model.ts"

    def inputs(self) -> dict[str, Tensor]:
        return example_inputs(self.job.workload, self.job.dataset, self.store)

    def float_model(self) -> torch.nn.Module:
        model = build_model(self.job.workload, self.job.dataset)
        model.load_state_dict(load_state(self.job.checkpoint, self.store))
        return model.eval()


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> Candidates:
    root = tmp_path_factory.mktemp("words")
    store = ArtifactStore(root / "store")
    return Candidates(job_of(words_workload(root), store), store)


def longer(inputs: dict[str, Tensor], vocabulary: int) -> dict[str, Tensor]:
    """Inputs of another length and batch size than those that were traced, from a state that is not zero."""
    layers, _, width = inputs["h"].shape
    tokens = torch.arange(11 * 5).reshape(11, 5) % vocabulary
    return {"tokens": tokens, "h": torch.full((layers, 5, width), 0.3), "c": torch.full((layers, 5, width), -0.2)}


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "float-without-onednn"])
def test_both_runtimes_agree_bit_for_bit_at_any_length_and_batch_size(candidates: Candidates, recipe: str) -> None:
    eager, script = candidates.open(recipe), candidates.open(recipe, "torchscript")
    for inputs in (candidates.inputs(), longer(candidates.inputs(), candidates.job.dataset.vocabulary)):
        expected = call(eager, inputs)
        for _ in range(3):  # TorchScript optimizes its graph in its first calls
            assert same(call(script, inputs), expected)


@pytest.mark.parametrize("recipe", [name for name, spec in RECIPES.items() if spec["method"] == "dynamic"])
def test_quantized_outputs_are_near_float_but_not_float(candidates: Candidates, recipe: str) -> None:
    inputs = longer(candidates.inputs(), candidates.job.dataset.vocabulary)
    expected, outputs = call(candidates.float_model(), inputs), call(candidates.open(recipe), inputs)
    assert not same(outputs, expected)
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.allclose(output, wanted, atol=0.02)


@pytest.mark.slow
def test_without_onednn_the_switch_is_off_inside_and_as_before_outside(candidates: Candidates) -> None:
    model, seen = candidates.open("float-without-onednn"), []
    model.call.encoder.register_forward_hook(lambda *_: seen.append(torch.backends.mkldnn.enabled))
    before = torch.backends.mkldnn.enabled
    expected = call(candidates.float_model(), candidates.inputs())
    for output, wanted in zip(call(model, candidates.inputs()), expected, strict=True):
        assert torch.allclose(output, wanted, atol=1e-6)
    assert seen == [False]
    assert torch.backends.mkldnn.enabled == before


def test_a_candidate_that_is_found_is_the_same_whatever_its_recipe_is_called(candidates: Candidates) -> None:
    made = candidates.build("int8")
    assert candidates.build("int8") == made
    named = candidates.job.workload.recipe_named("int8").model_copy(update={"name": "other"})
    other = candidates.job.workload.model_copy(update={"recipe": (named,)})
    job = replace(candidates.job, workload=other)
    assert build(job, "other", "eager", candidates.store) == made.model_copy(update={"recipe": "other"})


def test_coverage_lists_quantized_modules_and_reasons_for_the_others(candidates: Candidates) -> None:
    rows = {row.module: row for row in candidates.build("int8-but-decoder").coverage}
    assert set(rows) == {"encoder", "rnn", "decoder"}
    assert rows["rnn"].quantized
    assert not rows["rnn"].reason
    assert rows["decoder"].reason == "excluded by the recipe"
    assert rows["encoder"].reason == "the recipe does not name the type Embedding"
    assert sum(row.parameters for row in rows.values()) == candidates.job.checkpoint.parameters
    assert candidates.build("int8-embedding4").covered_share == 1
    assert candidates.build("float").covered_share == 0


def test_sizes_are_those_of_the_serialized_state_and_of_the_script(candidates: Candidates, tmp_path: Path) -> None:
    torch.save(candidates.float_model().state_dict(), tmp_path / "state.pt")
    assert abs(candidates.build("float").size_bytes - (tmp_path / "state.pt").stat().st_size) < 1024
    assert candidates.build("float", "torchscript").size_bytes == candidates.script("float").stat().st_size
    assert candidates.build("int8-embedding4").size_bytes < candidates.build("float").size_bytes


def test_nothing_is_published_where_the_output_is_not_finite(candidates: Candidates, tmp_path: Path) -> None:
    state = {name: tensor.clone() for name, tensor in load_state(candidates.job.checkpoint, candidates.store).items()}
    state["decoder.bias"][0] = float("inf")
    store = ArtifactStore(tmp_path)
    job = job_of(candidates.job.workload, store)
    with store.create("checkpoint", "f" * 64, {}) as folder:
        save_file(state, folder / "weights.safetensors")
    broken = CheckpointRef(kind="checkpoint", digest="f" * 64, parameters=job.checkpoint.parameters)
    with pytest.raises(QuantizationError, match="NaN or infinities"):
        build(replace(job, checkpoint=broken), "int8", "eager", store)
    assert not list(tmp_path.glob("artifacts/converted/*/*"))
    assert not list(tmp_path.glob("artifacts/candidate/*/*"))
