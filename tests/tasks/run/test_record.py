"""What a run says of itself, by what it has found."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.results.history import Baseline
from tasks.decide.gate import BundleDecision, GateDecision, Judgement
from tasks.environment.machine import observe
from tasks.run.publication import Publication
from tasks.run.record import RunRecord
from tasks.values.results import CandidateResult, RunInfo, WorkloadResult
from tests.storage.results.rows import baseline, measurement
from tests.tasks.decide.test_gate import workload
from tests.tasks.run.given import BENCHMARK, KILLED

DAY = dt.date(2026, 3, 1)
NOW = dt.datetime(2026, 3, 1, 3, tzinfo=dt.UTC)


def record(**changes: Any) -> RunRecord:
    info = RunInfo(run_id="r1", night=DAY, profile="quick")
    return RunRecord(info=info, workloads=[workload()], fixed={"started_at": NOW}, **changes)


def promoted(version: str | None = None, **standing: Any) -> Judgement:
    decision = GateDecision(
        recipe="int8", runtime="torchscript", decision="promote", objective="fastest", rules=(), reason="it is"
    )
    current = BundleDecision(version=version, reason="it is", **standing) if standing else None
    return Judgement(decisions=(decision,), current=current)


@given(st.booleans(), st.booleans(), st.booleans())
def test_failures_of_candidates_and_of_actions_come_before_regressions(
    candidate: bool, action: bool, regressed: bool
) -> None:
    run = record()
    if candidate:
        run.tables["demo"] = {"measurements": [measurement("r1", DAY, status="failed")]}
    if action:
        run.fail("the report", "the disk is full")
    failed = candidate or action
    assert run.exit_code(regressed) == (1 if failed else 3 if regressed else 0)
    assert run.row(NOW)["status"] == ("failed" if failed else "completed")


def test_candidates_are_counted_once_without_the_current_bundle_and_unsupported_candidates() -> None:
    rows = [
        baseline("r1", DAY),
        baseline("r1", DAY, setting="a/a"),
        measurement("r1", DAY, setting="current", status="failed"),
        measurement("r1", DAY, status="skipped"),
    ]
    assert record(tables={"word-lm": {"measurements": rows}}).candidates() == (1, 0)


def test_a_problem_is_reported_once() -> None:
    run = record()
    for why in ("the disk is full", "the disk is full", "it is late"):
        run.fail("the report", why)
    assert run.message() == (
        "0 candidates of 1 workload measured, 0 failed, the report failed: the disk is full; it is late, 0 promoted"
    )


@pytest.mark.parametrize(
    ("publication", "said"),
    [
        (Publication(promoted(), "v2"), "1 promoted"),
        (Publication(promoted("v1", stays=True), "v1"), "0 promoted, 1 kept"),
        (Publication(promoted(), problem="it is broken"), "publishing demo failed: it is broken, 0 promoted"),
    ],
)
def test_promoted_and_kept_bundles_are_counted_separately(publication: Publication, said: str) -> None:
    run = record()
    (row,) = run.publish("demo", publication, NOW)["promotions"]
    assert (row["bundle_version"], row["decided_at"]) == (publication.version or None, NOW)
    assert run.message().endswith(f"0 failed, {said}")
    assert run.exit_code() == bool(publication.problem)


def test_a_baseline_from_earlier_nights_is_mentioned_only_if_it_is_new() -> None:
    run = record()
    run.freeze({"demo": Baseline("float/torchscript", "it was faster")})
    assert (str(run.workloads[0].baseline_name), run.remarks) == ("float/torchscript", [])
    run.freeze({"demo": Baseline("float/eager", "it was faster", replaces="float/torchscript")})
    assert (str(run.workloads[0].baseline_name), run.baselines["demo"].name) == ("float/eager", "float/eager")
    assert run.remarks == ["demo: the baseline is now float/eager, because it was faster"]


def test_a_workloads_rows_have_the_reason_for_its_baseline() -> None:
    run = record()
    run.choose("demo", Baseline("float/eager", "it was the fastest"))
    failed = CandidateResult(recipe="float", runtime="eager", failure=KILLED)
    tables = run.add(WorkloadResult(workload=workload(), candidates=(failed,)), NOW)
    (row,) = tables["measurements"]
    assert (row["baseline_reason"], row["error"], tables["layers"]) == ("it was the fastest", KILLED.error, [])
    assert run.message().endswith("demo: the baseline is float/eager, because it was the fastest")


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (KeyboardInterrupt(), ("cancelled", "stopped (KeyboardInterrupt); not measured: demo")),
        (OSError("the disk is full"), ("failed", "stopped (the disk is full); not measured: demo")),
    ],
    ids=repr,
)
def test_an_error_fails_a_run_and_an_interruption_cancels_it(stop: BaseException, expected: tuple[str, str]) -> None:
    assert record().ended_by(stop) == expected
    done = record(results=[WorkloadResult(workload=workload(), candidates=())])
    assert done.ended_by(stop)[1].endswith("not measured: nothing")


def test_host_and_processor_of_a_run_are_those_of_the_host_that_benchmarked() -> None:
    run = record()
    assert [run.row(NOW, "failed")[name] for name in ("host", "cpu", "fingerprint")] == [None] * 3
    seen = observe(1)
    elsewhere = seen.model_copy(update={"host": "far", "machine": seen.machine.model_copy(update={"cpu": "Z80"})})
    benchmark = BENCHMARK.model_copy(update={"evidence_before": elsewhere.model_dump_json()})
    run.results.append(WorkloadResult(workload=workload(), candidates=(), benchmark=benchmark))
    row = run.row(NOW, "completed")
    assert (row["host"], row["cpu"], row["fingerprint"]) == ("far", "Z80", "f" * 64)
