"""Evaluation of a word language model through the stages, on a tiny corpus."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from storage.artifacts import ArtifactStore
from storage.errors import InputError, MeasurementError
from tasks.data.samples import load_samples
from tasks.data.weights import load_state
from tasks.domains.language_model import Evaluate, LanguageModelWorkload, WordLanguageModelSpec
from tasks.domains.language_model.domain import LanguageModel, WordLanguageModel
from tasks.domains.language_model.stream import word_losses
from tasks.evaluate import compare, quality_of
from tasks.job import Job, Workspace
from tasks.results import Evaluation
from tasks.tensor_files import Golden
from tests.tasks.pipeline import build, build_model, evaluate, example_inputs, job_of
from tests.tasks.text_workloads import text_workload, write_corpus

Prepared = tuple[Job[LanguageModelWorkload], ArtifactStore]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder: Path = tmp_path_factory.mktemp("language-model")
    workload, store = text_workload(write_corpus(folder / "corpus")), ArtifactStore(folder / "store")
    return job_of(workload, store), store


def evaluated(prepared: Prepared, recipe: str, runtime: str, mode: str = "segments") -> Evaluation:
    job, store = prepared
    settings = job.workload.evaluate.model_copy(update={"mode": mode})
    job = replace(job, workload=job.workload.model_copy(update={"evaluate": settings}))
    return evaluate(job, build(job, recipe, runtime, store), store)


@pytest.mark.parametrize("mode", ["segments", "exact"])
@pytest.mark.parametrize("recipe", ["float", "dynamic-int8", "embedding8"])
def test_both_runtimes_give_one_loss(prepared: Prepared, recipe: str, mode: str) -> None:
    eager, script = evaluated(prepared, recipe, "eager", mode), evaluated(prepared, recipe, "torchscript", mode)
    assert eager.quality == pytest.approx(script.quality, abs=1e-5)
    assert eager.mode == script.mode == (mode if recipe == "float" else f"{mode}, rows apart")
    assert eager.metrics["perplexity"] == pytest.approx(math.exp(eager.quality))


@pytest.mark.parametrize(("recipe", "tolerance"), [("float", 1e-5), ("dynamic-int8", 1e-3)])
@pytest.mark.slow
def test_segments_are_close_to_the_exact_mode(prepared: Prepared, recipe: str, tolerance: float) -> None:
    exact, segments = (evaluated(prepared, recipe, "eager", mode).quality for mode in ("exact", "segments"))
    assert segments == pytest.approx(exact, abs=tolerance)


def test_int8_is_evaluated_as_the_benchmark_calls_it_and_in_batches_as_well(prepared: Prepared) -> None:
    job, store = prepared
    int8 = build(job, "dynamic-int8", "eager", store)
    for length in (1, 25):
        benchmark = job.workload.benchmark.model_copy(update={"sequence_length": length})
        exact = job.workload.evaluate.model_copy(update={"mode": "exact", "sequence_length": length})
        asked = replace(job, workload=job.workload.model_copy(update={"benchmark": benchmark, "evaluate": exact}))
        result = evaluate(asked, int8, store)
        # In the exact mode a call is a row by itself, and here the two lengths of a call are the same.
        assert result.quality == result.quality_batched
        segments = replace(asked, workload=asked.workload.model_copy(update={"evaluate": job.workload.evaluate}))
        assert evaluate(segments, int8, store).quality == pytest.approx(result.quality, abs=2e-4)


@pytest.mark.slow
def test_only_int8_is_called_twice_and_then_with_one_row(prepared: Prepared) -> None:
    job, store = prepared
    model = build_model(job.workload, job.dataset)
    for recipe, largest in (("float", [4]), ("dynamic-int8", [4, 1])):
        columns: list[int] = []

        def call(tokens: Tensor, h: Tensor, c: Tensor, columns: list[int] = columns) -> object:
            columns.append(tokens.shape[1])
            return model(tokens, h, c)

        with torch.inference_mode():
            quality, batched = quality_of(job, call, Workspace(store), apart=recipe == "dynamic-int8")
        changes = [width for width, before in zip(columns, [0, *columns], strict=False) if width != before]
        assert [width for width in changes if width != 3] == largest  # the first segment has no warm-up
        assert quality.value == pytest.approx(batched.value, abs=1e-5)


def test_int8_is_compared_to_float_on_the_same_blocks(prepared: Prepared) -> None:
    _, store = prepared
    baseline, candidate = evaluated(prepared, "float", "eager"), evaluated(prepared, "dynamic-int8", "torchscript")
    comparison = compare(baseline, candidate, store)
    assert comparison.quality_difference == pytest.approx(candidate.quality - baseline.quality)
    assert comparison.quality_difference_low is not None
    assert comparison.quality_difference_high is not None
    assert comparison.quality_difference_low - 1e-6 <= comparison.quality_difference
    assert comparison.quality_difference <= comparison.quality_difference_high + 1e-6


def test_golden_outputs_are_what_the_float_model_computes(prepared: Prepared) -> None:
    job, store = prepared
    outputs = evaluated(prepared, "float", "eager").outputs
    golden = Golden.read(store.path(outputs.kind, outputs.digest) / "golden.safetensors")
    assert list(golden.inputs) == list(example_inputs(job.workload, job.dataset, store)) == ["tokens", "h", "c"]
    model = build_model(job.workload, job.dataset)
    model.load_state_dict(load_state(job.checkpoint, store))
    with torch.inference_mode():
        expected = model(*golden.inputs.values())
    for actual, tensor in zip(golden.outputs, expected, strict=True):
        torch.testing.assert_close(actual, tensor)


def test_samples_average_to_the_loss(prepared: Prepared) -> None:
    job, store = prepared
    result = evaluated(prepared, "float", "eager")
    samples = load_file(store.path(result.outputs.kind, result.outputs.digest) / "samples.safetensors")
    assert samples["quality"].dtype == torch.float32
    assert samples["quality"].double().mean().item() == pytest.approx(result.quality, rel=1e-6)
    assert result.samples == len(load_samples(job.dataset, "test", store)["tokens"]) - 1


@pytest.mark.parametrize("bias", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_refused(prepared: Prepared, bias: float) -> None:
    job, store = prepared
    model = build_model(job.workload, job.dataset)
    model.decoder.bias.data.fill_(bias)
    with pytest.raises(MeasurementError, match="loss is nan"):
        LanguageModel().evaluate(job, model, Workspace(store))


def test_a_stream_of_one_word_is_refused() -> None:
    spec = WordLanguageModelSpec(kind="word-lm", embedding_size=4, hidden_size=4, layers=1)
    with pytest.raises(InputError, match="two words"):
        word_losses(WordLanguageModel(5, 4, 4, 1, 0.0), torch.zeros(1, dtype=torch.int32), spec, Evaluate())


def test_a_hopeless_loss_has_no_perplexity_that_no_table_could_take(prepared: Prepared) -> None:
    job, store = prepared
    model = build_model(job.workload, job.dataset)
    model.decoder.weight.data.zero_()
    model.decoder.bias.data.copy_(torch.linspace(0, 1e5, job.dataset.vocabulary))
    with torch.inference_mode():
        quality = LanguageModel().evaluate(job, model, Workspace(store))
    assert quality.value > 1000
    assert set(quality.metrics) == {"loss"}
