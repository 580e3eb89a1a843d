"""Quantizing a tiny word language model by every recipe, from the checkpoint to both runtimes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError, StoreError
from tasks.checkpoint import load_state
from tasks.models import build, example_inputs
from tasks.quantize import engine_of, load, quantize
from tasks.refs import CandidateRef, CheckpointRef, DatasetRef
from tasks.workload import Workload
from tests.tasks.quantize.words import RECIPES, call, prepared, same, words_workload


@dataclass(frozen=True)
class Site:
    workload: Workload
    store: ArtifactStore
    dataset: DatasetRef
    checkpoint: CheckpointRef

    def quantize(self, recipe: str) -> CandidateRef:
        return quantize(self.workload, self.workload.recipe_named(recipe), self.dataset, self.checkpoint, self.store)

    def folder(self, recipe: str) -> Path:
        ref = self.quantize(recipe)
        return self.store.path(ref.kind, ref.digest)

    def load(self, recipe: str, runtime: Runtime = "eager") -> torch.nn.Module:
        return load(self.folder(recipe), runtime)

    def inputs(self) -> dict[str, Tensor]:
        return example_inputs(self.workload, self.dataset, self.store)

    def float_model(self) -> torch.nn.Module:
        model = build(self.workload.model, self.dataset)
        model.load_state_dict(load_state(self.checkpoint, self.store))
        return model.eval()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    root = tmp_path_factory.mktemp("words")
    workload = words_workload(root)
    store = ArtifactStore(root / "store")
    return Site(workload, store, *prepared(workload, store))


def longer(inputs: dict[str, Tensor], vocabulary: int) -> dict[str, Tensor]:
    """Inputs of another length and batch size than those that were traced, from a state that is not zero."""
    layers, _, width = inputs["h"].shape
    tokens = torch.arange(11 * 5).reshape(11, 5) % vocabulary
    return {"tokens": tokens, "h": torch.full((layers, 5, width), 0.3), "c": torch.full((layers, 5, width), -0.2)}


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "float-without-onednn"])
def test_both_runtimes_agree_bit_for_bit_at_any_length_and_batch_size(site: Site, recipe: str) -> None:
    eager, script = site.load(recipe), site.load(recipe, "torchscript")
    for inputs in (site.inputs(), longer(site.inputs(), site.dataset.vocabulary)):
        expected = call(eager, inputs)
        for _ in range(3):  # TorchScript optimizes its graph in its first calls
            assert same(call(script, inputs), expected)


@pytest.mark.parametrize("recipe", [name for name, spec in RECIPES.items() if spec["method"] == "dynamic"])
def test_quantized_outputs_are_near_float_but_not_float(site: Site, recipe: str) -> None:
    inputs = longer(site.inputs(), site.dataset.vocabulary)
    expected, outputs = call(site.float_model(), inputs), call(site.load(recipe), inputs)
    assert not same(outputs, expected)
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.allclose(output, wanted, atol=0.02)


@pytest.mark.parametrize("recipe", ["float", "float-channels-last"])
def test_float_recipes_compute_what_the_checkpoint_computes(site: Site, recipe: str) -> None:
    assert same(call(site.load(recipe), site.inputs()), call(site.float_model(), site.inputs()))


def test_without_onednn_the_switch_is_off_inside_and_as_before_outside(site: Site) -> None:
    model, seen = site.load("float-without-onednn"), []
    model.model.encoder.register_forward_hook(lambda *_: seen.append(torch.backends.mkldnn.enabled))
    before = torch.backends.mkldnn.enabled
    for output, wanted in zip(call(model, site.inputs()), call(site.float_model(), site.inputs()), strict=True):
        assert torch.allclose(output, wanted, atol=1e-6)
    assert seen == [False]
    assert torch.backends.mkldnn.enabled == before


def test_weights_are_int8_in_the_quantized_model(site: Site) -> None:
    model = site.load("int8")
    assert model.decoder.weight().dtype == torch.qint8
    assert model.rnn._all_weight_values[1].param.__getstate__()[0][0] == "quantized_dynamic"
    assert site.load("int8-per-channel").decoder.weight().qscheme() == torch.per_channel_affine


def test_per_channel_reaches_the_lstm_too(site: Site) -> None:
    cell = site.load("int8-per-channel").rnn._all_weight_values[0].param.__getstate__()[0]
    weight, _ = cell[4][0].__getstate__()[0]
    assert weight.qscheme() == torch.per_channel_affine


@pytest.mark.parametrize(("recipe", "bits"), [("int8-embedding8", 8), ("int8-embedding4", 4)])
def test_a_quantized_embedding_has_rows_of_the_right_width_and_values(site: Site, recipe: str, bits: int) -> None:
    tokens = torch.arange(site.dataset.vocabulary).reshape(1, -1)
    weight = site.float_model().encoder.weight.detach()
    rows = site.load(recipe).encoder(tokens)[0]
    assert rows.shape == weight.shape
    step = (weight.amax(1) - weight.amin(1)) / (2**bits - 1)
    assert bool(((rows - weight).abs().amax(1) <= step).all())


def test_a_found_artifact_gives_the_same_reference_whatever_the_recipe_is_called(site: Site) -> None:
    made = site.quantize("int8")
    assert site.quantize("int8") == made
    renamed = site.workload.recipe_named("int8").model_copy(update={"name": "other"})
    found = quantize(site.workload, renamed, site.dataset, site.checkpoint, site.store)
    assert found == made.model_copy(update={"recipe": "other"})


def test_each_recipe_has_its_own_digest(site: Site) -> None:
    assert len({site.quantize(recipe).digest for recipe in RECIPES}) == len(RECIPES)


def test_coverage_says_what_was_quantized_and_why_the_rest_was_not(site: Site) -> None:
    rows = {row.module: row for row in site.quantize("int8-but-decoder").coverage}
    assert set(rows) == {"encoder", "rnn", "decoder"}
    assert rows["rnn"].quantized
    assert not rows["rnn"].reason
    assert rows["decoder"].reason == "excluded by the recipe"
    assert rows["encoder"].reason == "the recipe does not name the type Embedding"
    assert sum(row.parameters for row in rows.values()) == site.checkpoint.parameters
    assert site.quantize("int8-embedding4").covered_share == 1
    assert site.quantize("float").covered_share == 0


def test_sizes_are_those_of_the_serialized_state_and_of_the_script(site: Site, tmp_path: Path) -> None:
    ref, folder = site.quantize("float"), site.folder("float")
    torch.save(site.float_model().state_dict(), tmp_path / "state.pt")
    assert abs(ref.size_bytes["eager"] - (tmp_path / "state.pt").stat().st_size) < 1024
    assert ref.size_bytes["torchscript"] == (folder / "model.ts").stat().st_size
    assert site.quantize("int8-embedding4").size_bytes["eager"] < ref.size_bytes["eager"]


@pytest.mark.parametrize("recipe", ["int8-embedding4", "int8-onednn"])
def test_the_script_runs_where_this_project_is_not(site: Site, tmp_path: Path, recipe: str) -> None:
    """A fresh, isolated process that has torch alone gives the outputs of the model that was evaluated."""
    inputs = site.inputs()
    save_file({f"{i}": tensor.contiguous() for i, tensor in enumerate(inputs.values())}, tmp_path / "in.safetensors")
    code = f"""
import sys, torch
from safetensors.torch import load_file, save_file
torch.backends.quantized.engine = {engine_of(site.folder(recipe))!r}
inputs = load_file({str(tmp_path / "in.safetensors")!r})
with torch.inference_mode():
    outputs = torch.jit.load({str(site.folder(recipe) / "model.ts")!r})(*(inputs[str(i)] for i in range(len(inputs))))
save_file({{str(i): output.contiguous() for i, output in enumerate(outputs)}}, {str(tmp_path / "out.safetensors")!r})
assert not any(name.split(".")[0] in ("tasks", "flows", "storage") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-I", "-c", code], check=True, cwd=tmp_path, timeout=300)
    outputs = load_file(tmp_path / "out.safetensors")
    assert same(tuple(outputs[str(i)] for i in range(len(outputs))), call(site.load(recipe), inputs))


def test_nothing_is_published_where_the_output_is_not_finite(site: Site, tmp_path: Path) -> None:
    state = {name: tensor.clone() for name, tensor in load_state(site.checkpoint, site.store).items()}
    state["decoder.bias"][0] = float("inf")
    store = ArtifactStore(tmp_path)
    dataset, _ = prepared(site.workload, store)
    with store.create("checkpoint", "f" * 64, {}) as folder:
        save_file(state, folder / "weights.safetensors")
    broken = CheckpointRef(kind="checkpoint", digest="f" * 64, parameters=site.checkpoint.parameters)
    with pytest.raises(QuantizationError, match="NaN or infinities"):
        quantize(site.workload, site.workload.recipe_named("int8"), dataset, broken, store)
    assert not list(tmp_path.glob("artifacts/quantized/*/*"))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match="no quantized model"):
        load(tmp_path, "eager")


def test_a_full_disk_is_told_as_the_stores_own_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, store = words_workload(tmp_path), ArtifactStore(tmp_path / "store")
    dataset, checkpoint = prepared(workload, store)

    def fail(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("tasks.tensor_files.save_file", fail)
    with pytest.raises(StoreError, match="No space left"):
        quantize(workload, workload.recipe_named("float"), dataset, checkpoint, store)
