"""A run's name and what is kept of one that was stopped."""

import datetime as dt
from types import SimpleNamespace
from uuid import UUID

import pytest

from flows.execution.signals import Terminated
from flows.night import Night
from flows.nightly import _concerns, _keep_what_is_finished
from flows.request import NightlyRequest
from flows.settings import load_settings
from storage.results.query import run_query
from storage.results.regressions import Regression
from tasks.gate import GateDecision
from tests.storage.results.rows import baseline, measurement

DAY = dt.date(2026, 3, 1)


@pytest.fixture
def begin(tmp_path):
    def make(flow_run_id="", attempt=1, **request):
        store = str(tmp_path / "store")
        asked = NightlyRequest(workloads=("lstm-demo",), store=store, profile="quick", night=DAY, **request)
        return Night.begin(asked, load_settings(store=store, profile="quick"), flow_run_id, attempt)

    return make


def test_flow_runs_that_were_made_in_one_millisecond_are_two_runs(begin):
    # Version 7, as Prefect makes them: the first 48 bits are the time.
    first, second = (str(UUID(f"019aa5d2-1c00-7{tail}")) for tail in ("abc-8def-0123456789ab", "abc-8def-ba9876543210"))
    assert begin(first).info.run_id != begin(second).info.run_id
    assert begin(first).info.run_id == begin(first).info.run_id
    assert begin().info.run_id != begin().info.run_id


def test_a_flow_run_that_is_retried_is_another_run(begin):
    flow_run = "019aa5d2-1c00-7abc-8def-0123456789ab"
    assert begin(flow_run, 2).info.run_id == f"{begin(flow_run, 1).info.run_id}-2"


def test_a_run_that_is_stopped_keeps_what_was_handed_over(begin, tmp_path):
    night = begin()
    run, (workload,) = night.info.run_id, night.workloads
    night.rows += [baseline(run, DAY, profile="quick"), measurement(run, DAY, profile="quick")]
    decision = GateDecision(
        recipe="dynamic", runtime="eager", decision="promote", objective="fastest", rules=(), reason="it is"
    )
    night.bundles[workload.name] = "v"
    night.decide(workload.name, [decision])
    said = []
    execution = SimpleNamespace(reporter=SimpleNamespace(noted=said.append), workers=SimpleNamespace(stop=lambda: None))
    store = str(tmp_path / "store")
    _keep_what_is_finished(night, Terminated(), execution)
    assert run_query(store, "select bundle_version from promotions").to_pylist() == [{"bundle_version": "v"}]
    assert run_query(store, "select status from runs").to_pylist() == [{"status": "cancelled"}]
    assert run_query(store, "from measurements").num_rows == 2
    assert said == ["stopped (Terminated); not measured: lstm-demo"]


def finding(workload, kind):
    return Regression(workload, "dynamic", "eager", "f" * 64, kind, "speedup", 1.0, 0.9, 1.1, 2.0, -0.5, 10)


@pytest.mark.parametrize(
    ("recipes", "workload", "kind", "told"),
    [
        ((), "lstm-demo", "slower", True),
        ((), "lstm-demo", "vanished", True),
        (("float", "dynamic-int8"), "lstm-demo", "vanished", False),
        (("float", "dynamic-int8"), "lstm-demo", "slower", True),
        ((), "word-lm", "slower", False),  # which another run of this night has measured, and told of
    ],
)
def test_a_run_tells_of_what_it_measured(begin, recipes, workload, kind, told):
    assert _concerns(finding(workload, kind), begin(recipes=recipes)) is told
