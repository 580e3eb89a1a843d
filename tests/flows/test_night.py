"""A run's name and what is kept of one that was stopped."""

import datetime as dt
from types import SimpleNamespace

import pytest

from flows.execution.signals import Terminated
from flows.handover import Handover
from flows.night import Night
from flows.nightly import _save_finished
from flows.request import NightlyRequest
from flows.settings import load_settings
from storage.results.query import run_query
from tasks.decide.gate import GateDecision, Judgement
from tasks.environment.machine import observe
from tasks.values.results import BenchmarkResult, WorkloadResult
from tests.storage.results.rows import baseline, measurement

DAY = dt.date(2026, 3, 1)


@pytest.fixture
def begin(tmp_path):
    def make(flow_run_id="", attempt=1, **request):
        store = str(tmp_path / "store")
        asked = NightlyRequest(workloads=("word-lm",), store=store, profile="quick", night=DAY, **request)
        return Night.begin(asked, load_settings(store=store, profile="quick"), flow_run_id, attempt)

    return make


def test_flow_runs_of_one_millisecond_and_retries_are_different_runs(begin):
    # Version 7, as Prefect makes them: the first 48 bits are the time.
    first, second = (f"019aa5d2-1c00-7abc-8def-{tail}" for tail in ("0123456789ab", "ba9876543210"))
    assert begin(first).info.run_id != begin(second).info.run_id
    assert begin(first, 2).info.run_id == f"{begin(first, 1).info.run_id}-2"


@pytest.mark.slow
def test_a_run_that_is_stopped_keeps_what_was_handed_over(begin, tmp_path):
    night = begin()
    run, (workload,) = night.info.run_id, night.workloads
    night.rows += [baseline(run, DAY, profile="quick"), measurement(run, DAY, profile="quick")]
    decision = GateDecision(
        recipe="dynamic", runtime="eager", decision="promote", objective="fastest", rules=(), reason="it is"
    )
    night.decide(workload.name, Handover(Judgement(decisions=(decision,)), "v"))
    said = []
    execution = SimpleNamespace(reporter=SimpleNamespace(noted=said.append), workers=SimpleNamespace(stop=lambda: None))
    store = str(tmp_path / "store")
    _save_finished(night, Terminated(), execution)
    assert run_query(store, "select bundle_version from promotions").to_pylist() == [{"bundle_version": "v"}]
    assert run_query(store, "select status from runs").to_pylist() == [{"status": "cancelled"}]
    assert run_query(store, "from measurements").num_rows == 2
    assert said == ["stopped (Terminated); not measured: word-lm"]


@pytest.mark.slow
def test_a_problem_is_said_once_and_costs_the_exit_code(begin):
    night = begin()
    assert (night.attempt("counting", lambda: 1), night.has_failures()) == (1, False)
    for why in ("the disk is full", "the disk is full", "it is late"):
        night.fail("the report", why)
    assert night.attempt("dividing", lambda: 1 / 0) is None
    assert night.run_row()["status"] == "failed"
    assert "the report failed: the disk is full; it is late, dividing failed: division by zero" in night.message()


def test_host_and_processor_of_a_run_are_those_of_the_host_that_benchmarked(begin):
    night = begin()
    assert [night.run_row("failed", "")[name] for name in ("host", "cpu", "fingerprint")] == [None] * 3
    seen = observe(1)
    elsewhere = seen.model_copy(update={"host": "far", "machine": seen.machine.model_copy(update={"cpu": "Z80"})})
    benchmark = BenchmarkResult(
        workload="word-lm", baseline="float/eager", profile="quick", verdict="valid", aa_ratio=1, aa_low=1, aa_high=1,
    cold_aa_ratio=1, cold_aa_low=1, cold_aa_high=1,
        fingerprint="f" * 64, timings=(), evidence_before=elsewhere.model_dump_json(), evidence_after="",
    )  # fmt: skip
    night.results.append(WorkloadResult(workload=night.workloads[0], candidates=(), benchmark=benchmark))
    row = night.run_row("completed", "")
    assert (row["host"], row["cpu"], row["fingerprint"]) == ("far", "Z80", "f" * 64)
