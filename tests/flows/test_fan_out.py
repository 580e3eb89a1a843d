"""Where benchmarks are submitted, and what is reported of settings besides the primary one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from prefect.logging import disable_run_logger

from flows import fan_out
from flows.settings import Settings
from tasks.refs import ArtifactRef, CandidateRef, DatasetRef
from tasks.results import BenchmarkResult, CandidateResult, Evaluation, Failure, Incumbent, WorkloadResult
from tests.tasks.test_gate import workload

BENCHMARK = BenchmarkResult(
    workload="demo", baseline="float/eager", profile="quick", verdict="valid", aa_ratio=1, aa_low=1, aa_high=1,
    cold_aa_ratio=1, cold_aa_low=1, cold_aa_high=1,
    fingerprint="f" * 64, timings=(), evidence_before="{}", evidence_after="{}", wall_s=1, timed_s=1,
)  # fmt: skip


def test_a_refusal_in_a_further_setting_is_told_and_fails_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"int8/eager (batch 64, 1 thread)": "its output is NaN", "half/eager": "its output differs"}
    told: list[str] = []
    benchmark = BENCHMARK.model_copy(update={"refused": refused})
    monkeypatch.setattr(fan_out, "settle", lambda future, stage: benchmark)
    execution = SimpleNamespace(reporter=SimpleNamespace(noted=told.append))
    monkeypatch.setattr(fan_out, "current_execution", lambda: execution)
    candidates = tuple(CandidateResult(recipe=name, runtime="eager") for name in ("float", "int8", "half"))
    future: Any = None

    with disable_run_logger():
        result = fan_out._with_benchmark(WorkloadResult(workload=workload(), candidates=candidates), future)

    assert told == ["demo · int8/eager (batch 64, 1 thread): not measured: its output is NaN"]
    assert [one.failure.error if one.failure else "" for one in result.candidates] == ["", "", "its output differs"]


def test_what_is_odd_about_the_data_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    stages: dict[str, Any] = {
        "prepare": DatasetRef(kind="images", digest="d" * 64, splits={}, notes=("pictures are enlarged", "and few")),
        "checkpoint": Failure(stage="checkpoint", error="no weights"),
    }
    monkeypatch.setattr(fan_out, "settle", lambda future, stage: stages[stage])
    execution = SimpleNamespace(reporter=SimpleNamespace(noted=told.append))
    monkeypatch.setattr(fan_out, "current_execution", lambda: execution)
    future: Any = None

    with disable_run_logger():
        fan_out.gather(fan_out.Submitted(workload(), "store", future, future, {}, {}))

    assert told == ["demo: the data: pictures are enlarged; and few"]


@pytest.mark.parametrize("runner", ["threads", "dask"])
def test_a_cluster_gets_every_benchmark_at_once_and_each_where_it_may_run(
    monkeypatch: pytest.MonkeyPatch, runner: Literal["threads", "dask"]
) -> None:
    events: list[str] = []

    @contextmanager
    def pin() -> Iterator[None]:
        events.append("pinned")
        yield

    monkeypatch.setattr(fan_out, "place_benchmarks", lambda settings: pin)
    results = [WorkloadResult(workload=workload(), candidates=())] * 2

    for result in fan_out.benchmark_all(results, Settings(task_runner=runner), "store"):
        assert result == results[0]
        events.append("through")

    one = ["pinned", "through"]
    assert events == ({"threads": one * 2, "dask": ["pinned", "pinned", "through", "through"]}[runner])


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


def standings(gate: dict[str, Any], incumbent: Incumbent | None = None) -> list[str]:
    """What is submitted of a baseline of 100 bytes and a larger and a smaller candidate."""
    candidates = candidate("float", "eager"), candidate("int8", size=100), candidate("half", size=40)
    result = WorkloadResult(workload=workload(**gate), candidates=candidates, incumbent=incumbent)
    return [fan_out._standing(result, each) for each in candidates[1:]]


def test_only_what_could_be_promoted_is_timed_until_it_is_decided() -> None:
    assert standings({"min_speedup": 1.1}) == ["challenger", "challenger"]
    assert standings({"min_speedup": 1.1, "min_size_ratio": 2.0}) == ["settled", "challenger"]
    assert standings({"objective": "smallest"}) == ["settled", "settled"]
    assert standings({"objective": "smallest", "min_speedup": 1.1}) == ["challenger", "challenger"]


def test_tonights_candidate_that_is_the_incumbent_defends_itself_whatever_its_rules_say() -> None:
    held = Incumbent(version="2026-11-20-0123456789ab", same_as="int8/torchscript")
    assert standings({"min_speedup": 1.1, "min_size_ratio": 2.0}, held) == ["defender", "challenger"]
