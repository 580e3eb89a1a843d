"""A run's name and what is kept of one that was stopped."""

import datetime as dt
from types import SimpleNamespace

import pytest

from flows.execution.signals import Terminated
from flows.nightly import _save_finished
from flows.request import NightlyRequest
from flows.run import Run
from flows.settings import load_settings
from storage.results.query import run_query
from tasks.decide.gate import GateDecision, Judgement
from tasks.run.publication import Publication
from tests.storage.results.rows import baseline, measurement

DAY = dt.date(2026, 3, 1)


@pytest.fixture
def begin(tmp_path):
    def make(flow_run_id="", attempt=1, **request):
        store = str(tmp_path / "store")
        asked = NightlyRequest(workloads=("word-lm",), store=store, profile="quick", night=DAY, **request)
        return Run.begin(asked, load_settings(store=store, profile="quick"), flow_run_id, attempt)

    return make


def test_flow_runs_of_one_millisecond_and_retries_are_different_runs(begin):
    # Version 7, as Prefect makes them: the first 48 bits are the time.
    first, second = (f"019aa5d2-1c00-7abc-8def-{tail}" for tail in ("0123456789ab", "ba9876543210"))
    assert begin(first).info.run_id != begin(second).info.run_id
    assert begin(first, 2).info.run_id == f"{begin(first, 1).info.run_id}-2"


@pytest.mark.slow
def test_a_stopped_run_keeps_its_published_bundles(begin, tmp_path):
    night = begin()
    run, (workload,) = night.info.run_id, night.workloads
    rows = [baseline(run, DAY, profile="quick"), measurement(run, DAY, profile="quick")]
    night.tables[workload.name] = {"measurements": rows}
    decision = GateDecision(
        recipe="dynamic", runtime="eager", decision="promote", objective="fastest", rules=(), reason="it is"
    )
    night.publish(workload.name, Publication(Judgement(decisions=(decision,)), "v"), dt.datetime.now(dt.UTC))
    said = []
    execution = SimpleNamespace(reporter=SimpleNamespace(noted=said.append), workers=SimpleNamespace(stop=lambda: None))
    store = str(tmp_path / "store")
    _save_finished(night, Terminated(), execution)
    assert run_query(store, "select bundle_version from promotions").to_pylist() == [{"bundle_version": "v"}]
    assert run_query(store, "select status from runs").to_pylist() == [{"status": "cancelled"}]
    assert run_query(store, "from measurements").num_rows == 2
    assert said == ["stopped (Terminated); not measured: word-lm"]


def test_an_action_that_fails_is_a_problem_of_the_run(begin):
    night = begin()
    assert night.attempt("counting", lambda: 1) == 1
    assert night.attempt("dividing", lambda: 1 / 0) is None
    assert night.problems == {"dividing": "division by zero"}
