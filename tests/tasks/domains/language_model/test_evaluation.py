"""Evaluation of a word language model through the stages, on a tiny corpus."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import MeasurementError
from tasks.domains.language_model import LanguageModelWorkload
from tasks.domains.language_model.domain import LanguageModel
from tasks.values.job import Job, Workspace
from tasks.values.results import Evaluation
from tests.tasks.pipeline import build, build_model, evaluate, job_of
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


@pytest.mark.parametrize(
    ("recipe", "mode"), [("float", "exact"), ("dynamic-int8", "segments"), ("embedding8", "exact")]
)
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


def test_a_loss_that_is_no_number_is_refused(prepared: Prepared) -> None:
    job, store = prepared
    model = build_model(job.workload, job.dataset)
    model.decoder.bias.data.fill_(math.nan)
    with pytest.raises(MeasurementError, match="loss is nan"):
        LanguageModel().evaluate(job, model, Workspace(store))
