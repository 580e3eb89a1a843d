"""The whole stage on PyTorch's recipe: real artifacts in a store, real processes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from tasks.environment.machine import fingerprint
from tasks.measure.benchmark.capacity import measure_capacity
from tasks.measure.benchmark.messages import PROFILES
from tasks.measure.benchmark.protocol import Session
from tasks.measure.benchmark.stage import BenchmarkCandidate, benchmark, memory_facts, proof_facts
from tasks.values.job import Job, Workspace
from tasks.values.results import BenchmarkResult
from tasks.workload import Workload, read_workload
from tasks.workload.workload import Capacity
from tests.tasks.measure.benchmark.planted import TINY
from tests.tasks.pipeline import build, evaluate, job_of

_WORKLOAD = Path(__file__).parents[4] / "flows" / "workloads" / "lstm-demo.toml"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return ArtifactStore(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def job(store: ArtifactStore) -> Job[Workload]:
    return job_of(read_workload(_WORKLOAD), store)


@pytest.fixture(scope="module")
def candidates(job: Job[Workload], store: ArtifactStore) -> list[BenchmarkCandidate]:
    built = [build(job, recipe.name, "eager", store) for recipe in job.workload.recipe]
    return [
        BenchmarkCandidate(candidate=candidate, outputs=evaluate(job, candidate, store).outputs) for candidate in built
    ]


@pytest.fixture(scope="module")
def result(job: Job[Workload], candidates: list[BenchmarkCandidate], store: ArtifactStore) -> BenchmarkResult:
    """A benchmark with a current bundle and capacities."""
    settings = job.workload.benchmark.model_copy(update={"capacity": Capacity(budget_s=1)})
    asked = replace(job, workload=job.workload.model_copy(update={"benchmark": settings}))
    current = candidates[1].model_copy(update={"setting": "current"})
    return benchmark(Workspace(store), asked, [*candidates, current], TINY)


@pytest.mark.slow
def test_every_candidate_is_timed_with_memory_evidence_and_raw_blocks(result: BenchmarkResult) -> None:
    settings = [(row.recipe, row.setting, row.batch_size) for row in result.timings]
    assert sorted(settings) == [
        ("dynamic-int8", "current", 1),
        ("dynamic-int8", "primary", 1),
        ("float", "a/a", 1),
        ("float", "primary", 1),
    ]
    for row in result.timings:
        assert len(row.block_s) == len(row.block_launch) == len(row.block_round) == row.blocks == 12
        assert row.speedup_low <= row.speedup <= row.speedup_high
        assert row.latency_q25_s <= row.latency_s <= row.latency_q75_s
        assert row.latency_p99_s is None
        assert row.launches == TINY.launches
        assert row.cold_speedup_low <= row.cold_speedup <= row.cold_speedup_high
        assert row.setting == "a/a" or (row.peak_rss_bytes or 0) >= (row.rss_loaded_bytes or 0) > 0
    decided = [row for row in result.timings if row.speedup_bound_low is not None]
    assert {row.setting for row in decided} == {"primary", "a/a", "current"}
    assert all((row.cold_speedup_bound_low or 0) < row.cold_speedup for row in decided)
    baselines = [row for row in result.timings if row.recipe == "float" and row.setting != "a/a"]
    assert {(row.speedup_low, row.speedup, row.speedup_high) for row in baselines} == {(1.0, 1.0, 1.0)}
    assert result.fingerprint == fingerprint()
    assert result.evidence_before != result.evidence_after


@pytest.mark.slow
def test_complete_proofs_are_kept_unless_the_gate_decides_by_their_times(
    result: BenchmarkResult, job: Job[Workload], candidates: list[BenchmarkCandidate], store: ArtifactStore
) -> None:
    facts = proof_facts(job.workload, candidates)
    # Without instructions, for example in a container that does not allow sampling, a proof is incomplete.
    complete = {name for name in facts if result.proofs[name].instructions is not None}
    assert {name for name, fact in facts.items() if fact.find(store)} == complete
    gate = job.workload.gate.model_copy(update={"min_int8_time_share": 0.5})
    assert proof_facts(job.workload.model_copy(update={"gate": gate}), candidates) == {}


@pytest.mark.slow
def test_memory_is_kept_until_a_setting_of_the_allocator_changes(
    result: BenchmarkResult,
    job: Job[Workload],
    candidates: list[BenchmarkCandidate],
    store: ArtifactStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = memory_facts(job.workload, candidates)
    kept = {name: fact.find(store) for name, fact in facts.items()}
    assert kept.keys() == {"float/eager", "dynamic-int8/eager"}
    for name, memory in kept.items():  # the current bundle's files are the quantized candidate's, measured again
        measured = {row.peak_rss_bytes for row in result.timings if f"{row.recipe}/eager" == name}
        assert memory is not None
        assert memory.peak_rss_bytes in measured - {None}
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    changed = memory_facts(job.workload, candidates)
    assert [fact.find(store) for fact in changed.values()] == [None, None]


@pytest.mark.slow
def test_capacity_is_measured_of_the_baseline_and_first_of_the_current_bundle(
    result: BenchmarkResult, job: Job[Workload]
) -> None:
    assert {"float/eager", "dynamic-int8/eager#current"} <= result.capacities.keys()
    for served in result.capacities.values():
        assert served.capacity_split.endswith("1 thread, batch 1")
    ratio = result.capacities["dynamic-int8/eager#current"]
    assert ratio.capacity_ratio_low < ratio.capacity_ratio < ratio.capacity_ratio_high
    settings = job.workload.benchmark.model_copy(update={"capacity": Capacity()})
    asked = job.workload.model_copy(update={"benchmark": settings})
    assert measure_capacity(Session(asked.baseline_name, PROFILES["quick"]), [], [], asked) == ({}, {})


@pytest.mark.slow
def test_the_current_bundles_own_files_are_timed_with_tonights_candidates(result: BenchmarkResult) -> None:
    rows = {(row.recipe, row.setting): row for row in result.timings}
    challenger = rows["dynamic-int8", "primary"]
    assert challenger.over_current_low is not None
    assert challenger.over_current_high is not None
    assert challenger.over_current_low < 1 < challenger.over_current_high
    assert {row.over_current for key, row in rows.items() if key != ("dynamic-int8", "primary")} == {None}
    assert challenger.cold_over_current_low is not None
    assert challenger.cold_over_current_high is not None
    assert challenger.cold_over_current_low < 1 < challenger.cold_over_current_high


def test_the_stage_is_imported_without_torch() -> None:
    code = "import sys, tasks.measure.benchmark.stage, tasks.measure.doctor; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
