"""The whole stage on PyTorch's recipe: real artifacts in a store, real processes."""

from __future__ import annotations

import dataclasses
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from storage.artifacts import ArtifactStore, artifact_digest
from storage.errors import MeasurementError
from tasks.benchmark import BenchmarkCandidate, benchmark, benchmark_with_rerun
from tasks.benchmark.messages import Subject
from tasks.benchmark.throughput import subjects_at
from tasks.checkpoint import obtain
from tasks.evaluate import evaluate
from tasks.machine import fingerprint
from tasks.prepare import prepare
from tasks.quantize import quantize
from tasks.refs import ArtifactRef, DatasetRef
from tasks.workload import Workload, read_workload
from tests.tasks.benchmark.planted import TINY

_WORKLOAD = Path(__file__).parents[3] / "flows" / "workloads" / "lstm-demo.toml"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return ArtifactStore(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def workload() -> Workload:
    loaded = read_workload(_WORKLOAD)
    settings = loaded.benchmark.model_copy(update={"batch_sizes": (2,)})
    return loaded.model_copy(update={"benchmark": settings})


@pytest.fixture(scope="module")
def dataset(workload: Workload, store: ArtifactStore) -> DatasetRef:
    return prepare(workload, store)


@pytest.fixture(scope="module")
def candidates(workload: Workload, dataset: DatasetRef, store: ArtifactStore) -> list[BenchmarkCandidate]:
    checkpoint = obtain(workload, dataset, store)
    found = []
    for recipe in workload.recipe:
        quantized = quantize(workload, recipe, dataset, checkpoint, store)
        evaluation = evaluate(workload, quantized, "eager", dataset, store)
        artifact = ArtifactRef(kind=quantized.kind, digest=quantized.digest)
        one = BenchmarkCandidate(recipe=recipe.name, runtime="eager", artifact=artifact, outputs=evaluation.outputs)
        found.append(one)
    return found


def _with_other_outputs(candidate: BenchmarkCandidate, store: ArtifactStore) -> BenchmarkCandidate:
    golden = store.path(candidate.outputs.kind, candidate.outputs.digest) / "golden.safetensors"
    tensors = load_file(golden)
    tensors["output.0"] += 1
    digest = artifact_digest("outputs", {"altered": candidate.outputs.digest})
    with store.create("outputs", digest, {}) as folder:
        save_file(tensors, folder / "golden.safetensors")
    return candidate.model_copy(update={"outputs": ArtifactRef(kind="outputs", digest=digest)})


@pytest.mark.slow
def test_every_candidate_is_timed_with_memory_evidence_and_raw_blocks(
    workload: Workload, candidates: list[BenchmarkCandidate], dataset: DatasetRef, store: ArtifactStore
) -> None:
    told: list[float] = []
    result = benchmark(
        workload, candidates, TINY, store, dataset=dataset, progress=lambda done, total, unit="": told.append(done)
    )
    assert result.refused == {}
    settings = [(row.recipe, row.setting, row.batch_size) for row in result.timings]
    assert sorted(settings) == [
        ("dynamic-int8", "primary", 1),
        ("dynamic-int8", "throughput", 2),
        ("float", "a/a", 1),
        ("float", "primary", 1),
        ("float", "throughput", 2),
    ]
    for row in result.timings:
        assert len(row.block_s) == len(row.block_launch) == len(row.block_round) == row.blocks == 12
        assert row.speedup_low <= row.speedup <= row.speedup_high
        assert row.latency_q25_s <= row.latency_s <= row.latency_q75_s
        assert row.latency_p99_s is None
        assert row.setting != "primary" or (row.peak_rss_bytes or 0) >= (row.rss_loaded_bytes or 0) > 0
    assert 0 < result.timed_s < result.wall_s
    assert result.fingerprint == fingerprint()
    after = json.loads(result.evidence_after)
    assert after["capability"]
    assert after["supported_engines"]
    assert after["involuntary_switches"] >= 0
    assert len(after["first_block_s"]) == TINY.launches
    assert told


@pytest.mark.slow
def test_candidate_with_other_outputs_than_evaluated_is_refused(
    workload: Workload, candidates: list[BenchmarkCandidate], dataset: DatasetRef, store: ArtifactStore
) -> None:
    altered = [candidates[0], _with_other_outputs(candidates[1], store)]
    plain = workload.model_copy(update={"benchmark": workload.benchmark.model_copy(update={"batch_sizes": ()})})
    result = benchmark(plain, altered, TINY, store)
    assert set(result.refused) == {"dynamic-int8/eager"}
    assert "differs" in result.refused["dynamic-int8/eager"]
    assert {row.recipe for row in result.timings} == {"float"}


@pytest.mark.slow
def test_baseline_with_other_outputs_is_an_error(
    workload: Workload, candidates: list[BenchmarkCandidate], store: ArtifactStore
) -> None:
    with pytest.raises(MeasurementError, match="baseline float/eager cannot be timed"):
        benchmark(workload, [_with_other_outputs(candidates[0], store)], TINY, store)


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [True, False])
def test_only_an_inconclusive_benchmark_of_a_profile_that_repeats_is_repeated_once(
    repeats: bool, workload: Workload, candidates: list[BenchmarkCandidate], dataset: DatasetRef, store: ArtifactStore
) -> None:
    profile = dataclasses.replace(TINY, repeats=repeats)
    results = benchmark_with_rerun(workload, candidates, profile, store, dataset=dataset)
    again = repeats and results[0].verdict == "inconclusive"
    assert [result.attempt for result in results] == ([1, 2] if again else [1])


def _with_sizes(workload: Workload, *sizes: int) -> Workload:
    return workload.model_copy(update={"benchmark": workload.benchmark.model_copy(update={"batch_sizes": sizes})})


@pytest.mark.slow
def test_a_further_setting_that_dies_costs_neither_the_primary_rows_nor_the_other_settings(
    workload: Workload,
    candidates: list[BenchmarkCandidate],
    dataset: DatasetRef,
    store: ArtifactStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dying(batch_size: int, *arguments: Any) -> AbstractContextManager[list[Subject]]:
        if batch_size == 64:
            raise MeasurementError("Most likely memory ran out.")
        return subjects_at(batch_size, *arguments)

    monkeypatch.setattr("tasks.benchmark.stage.subjects_at", dying)
    result = benchmark(_with_sizes(workload, 64, 2), candidates, TINY, store, dataset=dataset)
    assert result.refused == {"every candidate (batch 64, 1 thread)": "Most likely memory ran out."}
    assert {(row.setting, row.batch_size) for row in result.timings} == {
        ("primary", 1),
        ("a/a", 1),
        ("throughput", 2),
    }
