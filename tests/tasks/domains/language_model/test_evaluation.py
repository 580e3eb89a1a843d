"""Evaluation of a word language model through the stages, on a tiny corpus."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from storage.artifacts import ArtifactStore
from storage.errors import InputError, MeasurementError
from tasks.checkpoint import load_state, obtain
from tasks.domains.language_model.corpus import load_ids
from tasks.domains.language_model.evaluation import block_contributions, perplexity, word_losses
from tasks.domains.language_model.model import WordLanguageModel
from tasks.domains.language_model.sections import Evaluate, WordLanguageModelSpec
from tasks.evaluate import compare, evaluate
from tasks.models import build, example_inputs
from tasks.prepare import prepare
from tasks.quantize import quantize
from tasks.refs import CandidateRef, DatasetRef
from tasks.results import Evaluation
from tasks.workload import Workload
from tests.tasks.text_workloads import text_workload, write_corpus

Prepared = tuple[Workload, ArtifactStore, DatasetRef, dict[str, CandidateRef]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder: Path = tmp_path_factory.mktemp("language-model")
    workload, store = text_workload(write_corpus(folder / "corpus")), ArtifactStore(folder / "store")
    dataset = prepare(workload, store)
    checkpoint = obtain(workload, dataset, store)
    refs = {recipe.name: quantize(workload, recipe, dataset, checkpoint, store) for recipe in workload.recipe}
    return workload, store, dataset, refs


def evaluated(prepared: Prepared, recipe: str, runtime: Runtime, mode: str = "segments") -> Evaluation:
    workload, store, dataset, refs = prepared
    workload = workload.model_copy(update={"evaluate": workload.evaluate.model_copy(update={"mode": mode})})
    return evaluate(workload, refs[recipe], runtime, dataset, store)


@pytest.mark.parametrize("mode", ["segments", "exact"])
@pytest.mark.parametrize("recipe", ["float", "dynamic-int8", "embedding8"])
def test_both_runtimes_give_one_loss(prepared: Prepared, recipe: str, mode: str) -> None:
    eager, script = evaluated(prepared, recipe, "eager", mode), evaluated(prepared, recipe, "torchscript", mode)
    assert eager.quality == pytest.approx(script.quality, abs=1e-5)
    assert eager.mode == mode
    assert eager.metrics["perplexity"] == pytest.approx(math.exp(eager.quality))


@pytest.mark.parametrize(("recipe", "tolerance"), [("float", 1e-5), ("dynamic-int8", 1e-3)])
def test_segments_are_close_to_the_exact_mode(prepared: Prepared, recipe: str, tolerance: float) -> None:
    exact, segments = (evaluated(prepared, recipe, "eager", mode).quality for mode in ("exact", "segments"))
    assert segments == pytest.approx(exact, abs=tolerance)


def test_int8_is_compared_to_float_on_the_same_blocks(prepared: Prepared) -> None:
    _, store, _, _ = prepared
    baseline, candidate = evaluated(prepared, "float", "eager"), evaluated(prepared, "dynamic-int8", "torchscript")
    comparison = compare(baseline, candidate, store)
    assert comparison.quality_difference == pytest.approx(candidate.quality - baseline.quality)
    assert comparison.quality_difference_low is not None
    assert comparison.quality_difference_high is not None
    assert comparison.quality_difference_low - 1e-6 <= comparison.quality_difference
    assert comparison.quality_difference <= comparison.quality_difference_high + 1e-6


def test_golden_outputs_are_what_the_float_model_computes(prepared: Prepared) -> None:
    workload, store, dataset, _ = prepared
    outputs = evaluated(prepared, "float", "eager").outputs
    golden = load_file(store.path(outputs.kind, outputs.digest) / "golden.safetensors")
    inputs = example_inputs(workload, dataset, store)
    assert [f"input.{name}" for name in inputs] == ["input.tokens", "input.h", "input.c"]
    assert set(golden) == {"input.tokens", "input.h", "input.c", "output.0", "output.1", "output.2"}
    model = build(workload.model, dataset)
    model.load_state_dict(load_state(obtain(workload, dataset, store), store))
    with torch.inference_mode():
        expected = model(*(golden[f"input.{name}"] for name in inputs))
    for index, tensor in enumerate(expected):
        torch.testing.assert_close(golden[f"output.{index}"], tensor)


def test_samples_average_to_the_loss(prepared: Prepared) -> None:
    _, store, _, _ = prepared
    result = evaluated(prepared, "float", "eager")
    samples = load_file(store.path(result.outputs.kind, result.outputs.digest) / "samples.safetensors")
    assert samples["quality"].dtype == torch.float32
    assert samples["quality"].double().mean().item() == pytest.approx(result.quality, rel=1e-6)
    assert result.samples == len(load_ids(prepared[2], "test", store)) - 1


def test_a_loss_that_is_no_number_names_the_recipe(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, store, dataset, refs = prepared

    def broken(folder: Path, runtime: Runtime) -> torch.nn.Module:
        model = build(workload.model, dataset)
        assert isinstance(model, WordLanguageModel)
        model.decoder.bias.data.fill_(math.nan)
        return model

    monkeypatch.setattr("tasks.quantize.load", broken)
    with pytest.raises(MeasurementError, match="dynamic-int8"):
        evaluate(workload, refs["dynamic-int8"], "eager", dataset, store)


def test_a_stream_of_one_word_is_refused() -> None:
    spec = WordLanguageModelSpec(kind="word-lm", embedding_size=4, hidden_size=4, layers=1)
    with pytest.raises(InputError, match="two words"):
        word_losses(WordLanguageModel(5, 4, 4, 1, 0.0), torch.zeros(1, dtype=torch.int32), spec, Evaluate())


@given(st.lists(st.floats(0, 20, width=32), min_size=1, max_size=500))
def test_block_contributions_average_to_the_mean_loss(values: list[float]) -> None:
    losses = torch.tensor(values)
    blocks = block_contributions(losses)
    assert blocks.double().mean().item() == pytest.approx(losses.double().mean().item(), rel=1e-5, abs=1e-6)
    assert len(blocks) >= min(len(values), 20)


def test_a_hopeless_loss_has_an_infinite_perplexity() -> None:
    assert perplexity(1000.0) == math.inf
    assert perplexity(0.0) == 1.0
