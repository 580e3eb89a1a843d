"""How benchmarks are submitted, and what becomes of the current bundle when stages fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from flows import fan_out
from flows.settings import Settings
from tasks.values.job import Job
from tasks.values.refs import ArtifactRef, CandidateRef, CheckpointRef, DatasetRef
from tasks.values.results import (
    BenchmarkResult,
    CandidateResult,
    Comparison,
    Evaluation,
    Failure,
    Incumbent,
    UnknownIncumbent,
    WorkloadResult,
)
from tasks.workload.recipe import CandidateName
from tests.tasks.decide.test_gate import workload

BENCHMARK = BenchmarkResult(
    workload="demo", baseline="float/eager", profile="quick", verdict="valid", aa_ratio=1, aa_low=1, aa_high=1,
    cold_aa_ratio=1, cold_aa_low=1, cold_aa_high=1,
    fingerprint="f" * 64, timings=(), evidence_before="{}", evidence_after="{}",
)  # fmt: skip


def test_a_refusal_in_a_further_setting_is_told_and_fails_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"int8/eager (batch 64, 1 thread)": "its output is NaN", "half/eager": "its output differs"}
    told: list[str] = []
    benchmark = BENCHMARK.model_copy(update={"refused": refused})
    monkeypatch.setattr(fan_out, "settle", lambda future, stage: benchmark)
    monkeypatch.setattr(fan_out, "note", told.append)
    candidates = tuple(CandidateResult(recipe=name, runtime="eager") for name in ("float", "int8", "half"))
    future: Any = None

    with disable_run_logger():
        result = fan_out._with_benchmark(WorkloadResult(workload=workload(), candidates=candidates), future)

    assert told == ["demo · int8/eager (batch 64, 1 thread): not measured: its output is NaN"]
    assert [one.failure.error if one.failure else "" for one in result.candidates] == ["", "", "its output differs"]


@pytest.mark.parametrize(
    ("runner", "expected"),
    [("threads", ["submitted", "through"] * 2), ("dask", ["submitted"] * 2 + ["through"] * 2)],
)
def test_a_cluster_gets_every_benchmark_at_once(
    monkeypatch: pytest.MonkeyPatch, runner: str, expected: list[str]
) -> None:
    events: list[str] = []
    monkeypatch.setattr(fan_out, "_submit_benchmark", lambda *arguments: events.append("submitted"))
    results = [WorkloadResult(workload=workload(), candidates=())] * 2
    for result in fan_out.benchmark_all(results, Settings(task_runner=runner), "store"):
        assert result == results[0]
        events.append("through")
    assert events == expected


def candidate(recipe: str, runtime: str = "torchscript", size: int = 100) -> CandidateResult:
    """A candidate that was evaluated, with a loss of 1 and a size in bytes."""
    return CandidateResult(
        recipe=recipe,
        runtime=runtime,
        built=CandidateRef(kind="candidate", digest="d" * 64, recipe=recipe, runtime=runtime, size_bytes=size),
        evaluation=Evaluation(
            recipe=recipe,
            runtime=runtime,
            quality_metric="loss",
            quality=1.0,
            higher_is_better=False,
            metrics={},
            quality_batched=1.0,
            samples=1,
            outputs=ArtifactRef(kind="outputs", digest="e" * 64),
        ),
    )


def standings(gate: dict[str, Any]) -> list[str]:
    """What is submitted of a baseline of 100 bytes and a larger and a smaller candidate."""
    candidates = candidate("float", "eager"), candidate("int8", size=100), candidate("half", size=40)
    result = WorkloadResult(workload=workload(**gate), candidates=candidates)
    subjects = [fan_out._subject(result, each) for each in candidates[1:]]
    return [subject.standing for subject in subjects if subject]


@pytest.mark.slow
def test_only_what_could_be_promoted_is_timed_until_it_is_decided() -> None:
    assert standings({"min_speedup": 1.1}) == ["challenger", "challenger"]
    assert standings({"min_speedup": 1.1, "min_size_ratio": 2.0}) == ["settled", "challenger"]
    assert standings({"objective": "smallest"}) == ["settled", "settled"]
    assert standings({"objective": "smallest", "min_speedup": 1.1}) == ["challenger", "challenger"]


VERSION = "2026-11-20-0123456789ab"
KILLED = Failure(stage="", error="its process was killed, most likely because memory ran out.")
JOB = Job(
    workload(),
    DatasetRef(kind="random", digest="a" * 64, splits={}),
    CheckpointRef(kind="checkpoint", digest="c" * 64, parameters=1),
)


def deployed() -> Incumbent:
    """A current bundle that was looked up, whose own files are to be measured."""
    return Incumbent(version=VERSION, candidate=candidate("int8").built)


class Stages:
    """Stages that keep what they were asked with, in the place of Prefect's tasks."""

    def __init__(self) -> None:
        self.find_incumbent = self.evaluate = self.compare = self
        self.asked: list[tuple[Any, ...]] = []

    def submit(self, *arguments: Any) -> None:
        self.asked.append(arguments)

    def with_options(self, **options: object) -> Stages:
        return self


def compared(
    monkeypatch: pytest.MonkeyPatch, job: Job[Any] | None = JOB, comparisons: Any = None, **outcomes: Any
) -> tuple[WorkloadResult, Stages]:
    """What becomes of a workload whose stages end so, and what the stages were asked."""
    stages = Stages()
    monkeypatch.setattr(fan_out, "steps", stages)
    monkeypatch.setattr(fan_out, "settle", lambda future, stage: outcomes[stage])
    candidates = candidate("float", "eager"), candidate("half")
    search: Any = SimpleNamespace(comparisons=lambda: comparisons or {})
    result = WorkloadResult(workload=workload(), job=job, candidates=candidates)
    return fan_out.compare(result, "store", search), stages


def difference(value: float) -> Comparison:
    return Comparison(quality_difference=value)


def test_a_look_up_that_failed_leaves_the_current_bundle_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [difference(0.0)] * 2
    found = compared(monkeypatch, handoff=KILLED, compare=two)[0].incumbent
    assert isinstance(found, UnknownIncumbent)
    assert KILLED.error in found.reason
    assert isinstance(compared(monkeypatch, job=None, compare=two)[0].incumbent, UnknownIncumbent)
    assert compared(monkeypatch, handoff=None, compare=two)[0].incumbent is None


def test_the_current_bundle_is_compared_with_the_candidates_unless_its_measurement_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = {"evaluate": candidate("int8").evaluation, "compare": [difference(value) for value in (0.0, 0.1, 0.2)]}
    result, _ = compared(monkeypatch, handoff=deployed(), **good)
    assert isinstance(result.incumbent, Incumbent)
    assert (result.incumbent.failure, result.incumbent.comparison) == (None, difference(0.2))
    assert [one.comparison for one in result.candidates] == [difference(0.0), difference(0.1)]
    for killed in ({"evaluate": KILLED, "compare": [difference(0.0)] * 2}, {"compare": KILLED}):
        found = compared(monkeypatch, handoff=deployed(), **good | killed)[0].incumbent
        assert isinstance(found, Incumbent)
        assert (found.version, found.fault, found.failure) == (VERSION, "", KILLED)


def test_a_benchmark_that_failed_costs_the_current_bundle_its_measurement_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failure = Failure(stage="benchmark", error="ended after 60 s")
    monkeypatch.setattr(fan_out, "settle", lambda future, stage: failure)
    future: Any = None
    result = WorkloadResult(workload=workload(), candidates=(candidate("half"),), incumbent=deployed())
    found = fan_out._with_benchmark(result, future)
    assert isinstance(found.incumbent, Incumbent)
    assert found.incumbent.failure == found.candidates[0].failure == failure


def test_only_candidates_that_a_search_chose_are_compared_with_wider_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons = {CandidateName("half", "torchscript"): 3}
    _, stages = compared(monkeypatch, comparisons=comparisons, handoff=None, compare=[difference(0.0)] * 2)
    assert stages.asked[-1][-1] == [1, 3]
