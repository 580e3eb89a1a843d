"""Memory and proof in processes that are killed: what is lost is unknown, and nothing else is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tasks.measure.benchmark.contest import Contest, Measured
from tasks.measure.benchmark.diagnostics import Diagnosis, diagnose, timings_of
from tasks.measure.benchmark.messages import LaunchReport, Memory, Subject, SubjectReport
from tasks.measure.benchmark.protocol import Session
from tasks.values.proofs import Proof
from tasks.workload.recipe import CandidateName
from tests.tasks.measure.benchmark.planted import LOADER, TINY, plan

FLOAT = CandidateName("float", "eager")
MEMORY, PROOF = list(Memory.model_fields), list(Proof.model_fields)


@pytest.fixture(autouse=True)
def _planted_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.measure.benchmark.diagnostics._PROOF", "tests.tasks.measure.benchmark.mortal")


def diagnosed(*subjects: Subject, modules: tuple[str, ...] = (), known: Diagnosis | None = None) -> Diagnosis:
    return diagnose(Session(FLOAT, TINY, loader=LOADER), subjects, modules, known or Diagnosis())


@pytest.mark.slow
def test_a_candidate_that_kills_its_processes_affects_no_other_candidate(tmp_path: Path) -> None:
    subjects = [plan(tmp_path, name, work=1) for name in ("float/eager", "good/eager")]
    found = diagnosed(subjects[0], plan(tmp_path, "bad/eager", work=1, dies=int(signal.SIGSEGV)), subjects[1])
    assert set(found.memory) == set(found.proofs) == {"float/eager", "good/eager"}
    lacking = found.unknown["bad/eager"]
    assert set(lacking) == {*MEMORY, *PROOF}
    assert lacking["peak_rss_bytes"].startswith("The candidate's memory process was killed by SIGSEGV. ")
    # tests.tasks.measure.benchmark.mortal stands for tasks.measure.proof.child, whose name test_child.py tests.
    assert lacking["int8_time_share"].startswith("The mortal process was killed by SIGSEGV. ")
    assert all("update the runtime's package" in why for why in lacking.values())


@pytest.mark.slow
def test_a_memory_process_that_dies_loses_no_proof_and_what_is_known_is_not_measured_again(tmp_path: Path) -> None:
    subjects = [plan(tmp_path, name, work=1) for name in ("float/eager", "int8/eager")]
    proof, memory = Proof(int8_time_share=0.125), Memory(rss_loaded_bytes=1, peak_rss_bytes=2)
    known = Diagnosis({"float/eager": memory}, {"float/eager": proof})
    found = diagnosed(*subjects, modules=("tests.tasks.measure.benchmark.mortal_import",), known=known)
    assert found.memory == {"float/eager": memory}
    assert found.proofs == {"float/eager": proof, "int8/eager": Proof(int8_time_share=0.5)}
    assert set(found.unknown) == {"int8/eager"}
    why = found.unknown["int8/eager"]["peak_rss_bytes"]
    assert why.startswith("The diagnostics process was killed by SIGSEGV. ")


def launch(block_s: dict[str, float]) -> LaunchReport:
    """Return the report of a launch whose blocks of each subject took this long."""
    subjects = {
        name: SubjectReport(
            load_s=1, first_call_s=1, calls_per_block=1, round_s=(seconds,) * 3, single_s=(seconds,),
            cold_s=(seconds,) * 3,
        )
        for name, seconds in block_s.items()
    }  # fmt: skip
    return LaunchReport(subjects=subjects, refused={}, modules=())


def test_a_candidates_baseline_latency_comes_from_the_launches_that_timed_the_candidate() -> None:
    subjects = Subject(name=FLOAT), Subject(name=FLOAT, setting="a/a"), Subject(name=CandidateName("int8", "eager"))
    float_key, copy_key, int8_key = (subject.key for subject in subjects)
    both = {float_key: 0.002, copy_key: 0.002, int8_key: 0.001}
    slower = {float_key: 0.006, copy_key: 0.006}  # the host became slower after the candidate had left
    launches = (launch(both), launch(both), *[launch(slower)] * 3)
    baseline, copy, candidate = timings_of(Measured(float_key, copy_key, subjects, 1, launches, {}, Contest()), 1, {})
    assert [(timing.name, timing.setting) for timing in (baseline, copy)] == [(FLOAT, "primary"), (FLOAT, "a/a")]
    assert (baseline.latency_s, baseline.baseline_latency_s) == (0.006, 0.006)
    assert (candidate.baseline_latency_s, candidate.cold_baseline_latency_s) == (0.002, 0.002)
    assert candidate.baseline_latency_s / candidate.speedup == pytest.approx(candidate.latency_s)
