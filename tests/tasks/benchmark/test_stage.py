"""The whole stage on PyTorch's recipe: real artifacts in a store, real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import MeasurementError
from tasks.benchmark.capacity import measure_capacity
from tasks.benchmark.messages import PROFILES, Subject
from tasks.benchmark.protocol import Session
from tasks.benchmark.stage import (
    BenchmarkCandidate,
    Setting,
    benchmark,
    further_settings,
    proof_facts,
    subjects_at,
)
from tasks.job import Job, Workspace
from tasks.machine import fingerprint
from tasks.proofs import ProofReport
from tasks.refs import ArtifactRef, CandidateRef
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


def _with_sizes(job: Job[Workload], *sizes: int) -> Job[Workload]:
    settings = job.workload.benchmark.model_copy(update={"batch_sizes": sizes})
    return replace(job, workload=job.workload.model_copy(update={"benchmark": settings}))


def _with_capacity(job: Job[Workload], **keys: Any) -> Job[Workload]:
    settings = job.workload.benchmark.model_copy(update={"capacity": Capacity.model_validate(keys)})
    return replace(job, workload=job.workload.model_copy(update={"benchmark": settings}))


@pytest.mark.slow
def test_every_candidate_is_timed_with_memory_evidence_and_raw_blocks(
    job: Job[Workload], candidates: list[BenchmarkCandidate], store: ArtifactStore
) -> None:
    told: list[float] = []
    workspace = Workspace(store, lambda done, total, unit="": told.append(done))
    result = benchmark(_with_sizes(job, 2), candidates, TINY, workspace)
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
        assert row.launches == TINY.launches
        assert row.cold_speedup_low <= row.cold_speedup <= row.cold_speedup_high
        assert 0 < row.threads_used <= 1.1
        assert row.setting != "primary" or (row.peak_rss_bytes or 0) >= (row.rss_loaded_bytes or 0) > 0
    decided = [row for row in result.timings if row.speedup_bound_low is not None]
    assert {row.setting for row in decided} == {"primary", "a/a"}
    assert all((row.cold_speedup_bound_low or 0) < row.cold_speedup for row in decided)
    baselines = [row for row in result.timings if row.recipe == "float" and row.setting != "a/a"]
    assert {(row.speedup_low, row.speedup, row.speedup_high) for row in baselines} == {(1.0, 1.0, 1.0)}
    assert 0 < result.timed_s < result.wall_s
    assert result.fingerprint == fingerprint()
    after = json.loads(result.evidence_after)
    assert after["capability"]
    assert after["supported_engines"]
    assert after["involuntary_switches"] >= 0
    assert len(after["first_block_s"]) == len(after["end_s"]) == len(after["cold_wall_s"]) == TINY.launches
    assert after["proof_wall_s"] > 0
    assert all(0 < cold < end for cold, end in zip(after["cold_wall_s"], after["end_s"], strict=True))
    assert told


@pytest.mark.slow
def test_capacity_is_measured_of_the_baseline_and_of_candidates_that_may_be_promoted(
    job: Job[Workload], candidates: list[BenchmarkCandidate], store: ArtifactStore
) -> None:
    asked = _with_capacity(job, budget_s=1, price_per_hour=3.6)
    result = benchmark(asked, candidates, TINY, Workspace(store))
    assert set(result.capacities) == {"float/eager", "dynamic-int8/eager"}
    for served in result.capacities.values():
        assert served.capacity_split.endswith("1 thread, batch 1")
        assert served.cost_per_million == pytest.approx(1000 / served.capacity_rps)
    ratio = result.capacities["dynamic-int8/eager"]
    assert ratio.capacity_ratio_low < ratio.capacity_ratio < ratio.capacity_ratio_high
    barred = [each.model_copy(update={"may_be_promoted": False}) for each in candidates]
    only = benchmark(_with_capacity(job, budget_s=1), barred, TINY, Workspace(store))
    assert set(only.capacities) == {"float/eager"}


def test_a_capacity_that_is_not_measured_has_its_reason_and_the_benchmark_goes_on(
    job: Job[Workload], candidates: list[BenchmarkCandidate], store: ArtifactStore
) -> None:
    subjects = [candidate.subject(Workspace(store)) for candidate in candidates]
    session = Session("float/eager", PROFILES["quick"])
    names = ["dynamic-int8/eager"]
    asked = _with_capacity(job).workload
    assert measure_capacity(session, subjects, names, asked).unknown == {}, "the gate needs no capacity"
    gate = asked.gate.model_copy(update={"min_capacity_ratio": 1.5})
    found = measure_capacity(session, subjects, names, asked.model_copy(update={"gate": gate}))
    assert found.served == {}
    assert set(found.unknown) == {"float/eager", "dynamic-int8/eager"}
    assert all("in_quick = true" in why for reasons in found.unknown.values() for why in reasons.values())
    assert measure_capacity(session, subjects, names, job.workload).unknown == {}


@pytest.mark.slow
def test_the_incumbents_own_files_are_timed_beside_tonights(
    job: Job[Workload], candidates: list[BenchmarkCandidate], store: ArtifactStore
) -> None:
    incumbent = candidates[1].model_copy(update={"standing": "incumbent"})
    result = benchmark(_with_sizes(job, 2), [*candidates, incumbent], TINY, Workspace(store))
    rows = {(row.recipe, row.setting): row for row in result.timings}
    assert set(rows) == {
        ("float", "primary"),
        ("float", "a/a"),
        ("float", "throughput"),
        ("dynamic-int8", "primary"),
        ("dynamic-int8", "incumbent"),
        ("dynamic-int8", "throughput"),
    }
    challenger = rows["dynamic-int8", "primary"]
    assert challenger.over_incumbent_low is not None
    assert challenger.over_incumbent_high is not None
    assert challenger.over_incumbent_low < 1 < challenger.over_incumbent_high
    assert {row.over_incumbent for key, row in rows.items() if key != ("dynamic-int8", "primary")} == {None}
    assert challenger.cold_over_incumbent_low is not None
    assert challenger.cold_over_incumbent_high is not None
    assert challenger.cold_over_incumbent_low < 1 < challenger.cold_over_incumbent_high


@pytest.mark.slow
def test_a_further_setting_that_dies_costs_neither_the_primary_rows_nor_the_other_settings(
    job: Job[Workload], candidates: list[BenchmarkCandidate], store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(
        setting: Setting, subjects: Sequence[Subject], job: Job[Workload], store: ArtifactStore
    ) -> AbstractContextManager[list[Subject]]:
        if setting.batch_size == 64:
            raise MeasurementError("The host probably ran out of memory.")
        return subjects_at(setting, subjects, job, store)

    monkeypatch.setattr("tasks.benchmark.stage.subjects_at", dying)
    result = benchmark(_with_sizes(job, 64, 2), candidates, TINY, Workspace(store))
    assert result.refused == {"every candidate (batch 64, 1 thread)": "The host probably ran out of memory."}
    assert {(row.setting, row.batch_size) for row in result.timings} == {
        ("primary", 1),
        ("a/a", 1),
        ("throughput", 2),
    }


@pytest.mark.slow
def test_a_model_of_ones_own_is_timed_at_further_sizes(tmp_path: Path) -> None:
    write(tmp_path, CODE + SEQUENCES)
    sizes = {"baseline": "float/onnxruntime", "batch_sizes": [3], "sequence_lengths": [40]}
    recipe = [{"name": "float", "method": "none", "runtimes": ["onnxruntime"]}]
    store = ArtifactStore(tmp_path)
    job = job_of(own(tmp_path, data=PADDED, model=MEAN, benchmark=sizes, recipe=recipe), store)
    made = build(job, "float", "onnxruntime", store)
    result = benchmark(
        job, [BenchmarkCandidate(candidate=made, outputs=evaluate(job, made, store).outputs)], TINY, Workspace(store)
    )
    assert result.refused == {}
    assert [(row.setting, row.batch_size, row.sequence_length) for row in result.timings] == [
        ("primary", 1, None),
        ("a/a", 1, None),
        ("throughput", 3, 40),
    ]


@pytest.mark.slow
def test_complete_proofs_are_found_again(
    job: Job[Workload], candidates: list[BenchmarkCandidate], store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {candidate.name for candidate in candidates}
    first = benchmark(job, candidates, TINY, Workspace(store))
    asked: set[str] = set()
    prove = Session.prove

    def counted(session: Session, subjects: Sequence[Subject], modules: tuple[str, ...]) -> ProofReport:
        asked.update(subject.name for subject in subjects)
        return prove(session, subjects, modules)

    monkeypatch.setattr(Session, "prove", counted)
    again = benchmark(job, candidates, TINY, Workspace(store))
    # Without instructions, for example in a container that does not allow sampling, a proof is incomplete.
    complete = {name for name, proof in first.proofs.items() if proof.instructions is not None}
    assert asked == names - complete
    assert {name: again.proofs[name] for name in complete} == {name: first.proofs[name] for name in complete}


def test_every_proof_is_made_again_if_the_gate_decides_by_their_times() -> None:
    workload = read_workload(_WORKLOAD)
    made = CandidateRef(kind="candidate", digest="1" * 64, recipe="int8", runtime="eager", size_bytes=1)
    candidate = BenchmarkCandidate(candidate=made, outputs=ArtifactRef(kind="outputs", digest="2" * 64))
    assert set(proof_facts(workload, [candidate], ["int8/eager"])) == {"int8/eager"}
    assert proof_facts(workload, [candidate], ["float/eager"]) == {}
    gate = workload.gate.model_copy(update={"min_int8_time_share": 0.5})
    assert proof_facts(workload.model_copy(update={"gate": gate}), [candidate], ["int8/eager"]) == {}


@pytest.mark.slow
def test_further_settings_are_all_combinations_without_the_primary() -> None:
    settings = further_settings(Benchmark(threads=1, batch_size=1, batch_sizes=(1, 8), thread_counts=(1, 2)))
    assert settings == [Setting(1, 8), Setting(2, 1), Setting(2, 8)]
    assert further_settings(Benchmark()) == []
    lengths = SequenceBenchmark(sequence_length=16, batch_sizes=(1, 8), sequence_lengths=(16, 64))
    assert further_settings(lengths) == [Setting(1, 1, 64), Setting(1, 8), Setting(1, 8, 64)]
    assert str(Setting(1, 8, 64)) == "batch 8, 64 steps, 1 thread"


def test_the_stage_is_imported_without_torch() -> None:
    code = "import sys, tasks.benchmark.stage, tasks.doctor; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
