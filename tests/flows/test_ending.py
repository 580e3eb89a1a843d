"""The end of a night: the alarm, the hand-over with its rows, the report, and last of all what became of the run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flows import nightly
from flows.execution.context import executing
from flows.night import Night
from flows.reporter import Reporter
from flows.request import NightlyRequest, NightSummary
from flows.settings import load_settings
from storage.results.query import open_fresh, rows_of
from tasks.decide.gate import GateDecision, Judgement
from tasks.run.publication import Publication
from tasks.values.results import CandidateResult, Failure, WorkloadResult
from tests.storage.results.rows import baseline, write_night
from tests.tasks.decide.test_gate import workload

pytestmark = pytest.mark.server
DAY = dt.date(2026, 3, 5)
Begin = Callable[..., Night]


@pytest.fixture
def begin(tmp_path: Path, prefect_server: None) -> Begin:
    def make(**settings: Any) -> Night:
        store = str(tmp_path / "store")
        request = NightlyRequest(workloads=("word-lm",), store=store, profile="quick", night=DAY)
        return Night.begin(request, load_settings(store=store, profile="quick", **settings), "")

    return make


def rows(store: str, query: str) -> list[dict[str, Any]]:
    with open_fresh(store) as connection:
        return [dict(row) for row in rows_of(connection, query)]


@pytest.mark.filterwarnings("ignore:.*outside of a flow")
@pytest.mark.parametrize(
    ("hook_path", "blocked", "what"),
    [("", f"reports/{DAY}.html", "writing the report"), ("", "", ""), ("/broken", "", "webhook")],
)
def test_the_alarm_is_raised_and_the_status_recorded_whatever_else_fails(
    begin: Begin,
    hook: tuple[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    hook_path: str,
    blocked: str,
    what: str,
) -> None:
    url, received = hook
    night = begin(webhook_url=f"{url}{hook_path}")
    for day in range(1, 5):
        write_night(night.store, DAY - dt.timedelta(day))
    (Path(night.store) / blocked).mkdir(parents=True, exist_ok=True)

    def measure(night: Night) -> None:
        night.rows.append(baseline(night.info.run_id, DAY))  # and the candidate has vanished
        nightly.steps.record(night.info, night.measured("word-lm"), night.store, "word-lm")

    monkeypatch.setattr(nightly, "_measure", measure)
    state = nightly._carry_out(night, Reporter())
    summary = state.result(raise_on_failure=False)
    assert isinstance(summary, NightSummary)
    assert [payload["message"] for payload in received] == ["1 regression: word-lm dynamic/eager vanished"]
    (run,) = rows(night.store, f"select status, message from runs where run_id = '{night.info.run_id}'")
    if what:
        # Prefect's server reports a night whose state is ``Failed``.
        assert (state.name, summary.exit_code, run["status"]) == ("Failed", 1, "failed")
        assert f"{what} failed: " in run["message"]
        assert f"{what} failed: " in summary.message
    else:
        assert (state.name, summary.exit_code, run["status"]) == ("Regressed", 3, "completed")
        assert (Path(night.store) / f"reports/{DAY}.html").is_file()
    assert [row["kind"] for row in rows(night.store, "from findings")] == ["vanished"]


def two_workloads(night: Night) -> list[str]:
    names = ["first", "second"]
    for name in names:
        named = workload().model_copy(update={"name": name})
        night.results.append(WorkloadResult(workload=named, candidates=()))
    return names


def published(version: str) -> Publication:
    decision = GateDecision(
        recipe="int8", runtime="torchscript", decision="promote", objective="fastest", rules=(), reason="it is"
    )
    return Publication(Judgement(decisions=(decision,)), version)


class Killed(BaseException):
    """The process is dead from here on."""


def test_a_kill_in_a_workloads_benchmark_costs_no_measured_ones_rows(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = begin()
    night.workloads = []
    failed = CandidateResult(recipe="float", runtime="eager", failure=Failure(stage="quantize", error="it is"))

    def first_then_die(*_: object) -> Iterator[WorkloadResult]:
        yield WorkloadResult(workload=workload().model_copy(update={"name": "first"}), candidates=(failed,))
        raise Killed

    monkeypatch.setattr(nightly, "benchmark_all", first_then_die)
    with executing(night.settings, Reporter()), pytest.raises(Killed):
        nightly._measure(night)
    assert rows(night.store, "select workload, run_id from measurements") == [
        {"workload": "first", "run_id": night.info.run_id}
    ]


def test_a_defect_in_a_workloads_publication_costs_no_other_ones(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    night = begin()
    two_workloads(night)

    def fail_then_second(result: WorkloadResult, *_: object, **__: object) -> Publication:
        if result.workload.name == "first":
            raise KeyError("a defect")
        return published("v2")

    monkeypatch.setattr(nightly, "publish", fail_then_second)
    with executing(night.settings, Reporter()):
        for result in night.results:
            night.attempt(f"publishing {result.workload.name}", partial(nightly._publish, night, result))
    assert rows(night.store, "select workload, bundle_version from promotions") == [
        {"workload": "second", "bundle_version": "v2"}
    ]
    assert night.problems == {"publishing first": "'a defect'"}
    assert night.bundles == {"second": "v2"}
