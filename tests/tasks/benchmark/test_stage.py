"""The whole stage on PyTorch's recipe: real artifacts in a store, real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import MeasurementError
from tasks.benchmark.capacity import measure_capacity
from tasks.benchmark.messages import PROFILES, Subject
from tasks.benchmark.protocol import Session
from tasks.benchmark.stage import BenchmarkCandidate, Setting, benchmark, further_settings, proof_facts, subjects_at
from tasks.job import Job, Workspace
from tasks.machine import fingerprint
from tasks.results import BenchmarkResult
from tasks.tensor_files import Golden
from tasks.workload import Workload, read_workload
from tasks.workload.workload import Benchmark, Capacity, SequenceBenchmark
from tests.tasks.benchmark.planted import TINY
from tests.tasks.data.test_user_data import MEAN, PADDED, SEQUENCES
from tests.tasks.domains.custom.own import CODE, own, write
from tests.tasks.pipeline import build, evaluate, job_of

_WORKLOAD = Path(__file__).parents[3] / "flows" / "workloads" / "lstm-demo.toml"


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
    """A benchmark with a current bundle and capacities, of which the setting with 64 rows dies."""
    capacity = Capacity(budget_s=1)
    settings = job.workload.benchmark.model_copy(update={"batch_sizes": (64, 2), "capacity": capacity})
    asked = replace(job, workload=job.workload.model_copy(update={"benchmark": settings}))

    def dying(
        setting: Setting, subjects: Sequence[Subject], job: Job[Workload], store: ArtifactStore
    ) -> AbstractContextManager[list[Subject]]:
        if setting.batch_size == 64:
            raise MeasurementError("The host probably ran out of memory.")
        return subjects_at(setting, subjects, job, store)

    incumbent = candidates[1].model_copy(update={"standing": "incumbent"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.benchmark.stage.subjects_at", dying)
        return benchmark(asked, [*candidates, incumbent], TINY, Workspace(store))


@pytest.mark.slow
def test_every_candidate_is_timed_with_memory_evidence_and_raw_blocks(result: BenchmarkResult) -> None:
    settings = [(row.recipe, row.setting, row.batch_size) for row in result.timings]
    assert sorted(settings) == [
        ("dynamic-int8", "incumbent", 1),
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
        assert row.launches == TINY.launches
        assert row.cold_speedup_low <= row.cold_speedup <= row.cold_speedup_high
        assert row.setting != "primary" or (row.peak_rss_bytes or 0) >= (row.rss_loaded_bytes or 0) > 0
    decided = [row for row in result.timings if row.speedup_bound_low is not None]
    assert {row.setting for row in decided} == {"primary", "a/a", "incumbent"}
    assert all((row.cold_speedup_bound_low or 0) < row.cold_speedup for row in decided)
    baselines = [row for row in result.timings if row.recipe == "float" and row.setting != "a/a"]
    assert {(row.speedup_low, row.speedup, row.speedup_high) for row in baselines} == {(1.0, 1.0, 1.0)}
    assert result.fingerprint == fingerprint()
    assert result.evidence_before != result.evidence_after


@pytest.mark.slow
def test_a_further_setting_that_dies_costs_neither_the_primary_rows_nor_the_other_settings(
    result: BenchmarkResult,
) -> None:
    assert result.refused == {"every candidate (batch 64)": "The host probably ran out of memory."}
    assert {row.batch_size for row in result.timings} == {1, 2}


@pytest.mark.slow
def test_complete_proofs_are_kept_unless_the_gate_decides_by_their_times(
    result: BenchmarkResult, job: Job[Workload], candidates: list[BenchmarkCandidate], store: ArtifactStore
) -> None:
    facts = proof_facts(job.workload, candidates, result.proofs)
    # Without instructions, for example in a container that does not allow sampling, a proof is incomplete.
    complete = {name for name in facts if result.proofs[name].instructions is not None}
    assert {name for name, fact in facts.items() if fact.find(store)} == complete
    gate = job.workload.gate.model_copy(update={"min_int8_time_share": 0.5})
    assert proof_facts(job.workload.model_copy(update={"gate": gate}), candidates, result.proofs) == {}


@pytest.mark.slow
def test_capacity_is_measured_of_the_baseline_and_first_of_the_current_bundle(
    result: BenchmarkResult, job: Job[Workload]
) -> None:
    assert {"float/eager", "dynamic-int8/eager#incumbent"} <= result.capacities.keys()
    for served in result.capacities.values():
        assert served.capacity_split.endswith("1 thread, batch 1")
    ratio = result.capacities["dynamic-int8/eager#incumbent"]
    assert ratio.capacity_ratio_low < ratio.capacity_ratio < ratio.capacity_ratio_high
    settings = job.workload.benchmark.model_copy(update={"capacity": Capacity()})
    asked = job.workload.model_copy(update={"benchmark": settings})
    assert measure_capacity(Session("float/eager", PROFILES["quick"]), [], [], asked) == ({}, {})


@pytest.mark.slow
def test_the_incumbents_own_files_are_timed_beside_tonights(result: BenchmarkResult) -> None:
    rows = {(row.recipe, row.setting): row for row in result.timings}
    challenger = rows["dynamic-int8", "primary"]
    assert challenger.over_incumbent_low is not None
    assert challenger.over_incumbent_high is not None
    assert challenger.over_incumbent_low < 1 < challenger.over_incumbent_high
    assert {row.over_incumbent for key, row in rows.items() if key != ("dynamic-int8", "primary")} == {None}
    assert challenger.cold_over_incumbent_low is not None
    assert challenger.cold_over_incumbent_high is not None
    assert challenger.cold_over_incumbent_low < 1 < challenger.cold_over_incumbent_high


def test_a_model_of_ones_own_has_inputs_of_further_sizes(tmp_path: Path) -> None:
    write(tmp_path, CODE + SEQUENCES)
    job = job_of(own(tmp_path, data=PADDED, model=MEAN), ArtifactStore(tmp_path))
    subjects = [Subject(name="float/onnxruntime")]
    with subjects_at(Setting(3, 40), subjects, job, ArtifactStore(tmp_path)) as [subject]:
        inputs = Golden.read(Path(subject.golden)).inputs
    assert {tuple(tensor.shape[:2]) for tensor in inputs.values()} >= {(3, 40)}


def test_further_settings_are_all_combinations_without_the_primary() -> None:
    settings = further_settings(Benchmark(batch_size=1, batch_sizes=(1, 8, 2)))
    assert settings == [Setting(8), Setting(2)]
    assert further_settings(Benchmark()) == []
    lengths = SequenceBenchmark(sequence_length=16, batch_sizes=(1, 8), sequence_lengths=(16, 64))
    assert further_settings(lengths) == [Setting(1, 64), Setting(8), Setting(8, 64)]
    assert str(Setting(8, 64)) == "batch 8, 64 steps"


def test_the_stage_is_imported_without_torch() -> None:
    code = "import sys, tasks.benchmark.stage, tasks.doctor; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
