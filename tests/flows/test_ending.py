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
from flows.reporter import Reporter
from flows.request import NightlyRequest, NightSummary
from flows.run import Run
from flows.settings import load_settings
from storage.bundles import BundleStore
from storage.results.query import open_catalog, rows_of
from tasks.values.results import CandidateResult, CurrentBundle, Failure, WorkloadResult
from tests.storage.bundle_files import key_file, publish
from tests.storage.results.rows import baseline, write_night
from tests.tasks.decide.test_gate import row, workload
from tests.tasks.run.given import JOB, candidate

pytestmark = pytest.mark.server
DAY = dt.date(2026, 3, 5)
Begin = Callable[..., Run]


@pytest.fixture
def begin(tmp_path: Path, prefect_server: None) -> Begin:
    def make(**settings: Any) -> Run:
        store = str(tmp_path / "store")
        request = NightlyRequest(workloads=("word-lm",), store=store, profile="quick", night=DAY)
        return Run.begin(request, load_settings(store=store, profile="quick", **settings), "")

    return make


def rows(store: str, query: str) -> list[dict[str, Any]]:
    with open_catalog(store, fresh=True) as connection:
        return [dict(row) for row in rows_of(connection, query)]


@pytest.mark.filterwarnings("ignore:.*outside of a flow")
@pytest.mark.parametrize(
    ("hook_path", "blocked", "what"),
    [("", f"reports/{DAY}.html", "writing the report"), ("", "", ""), ("/broken", "", "webhook")],
)
def test_the_alert_is_sent_and_the_status_recorded_whatever_else_fails(
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

    def measure(run: Run) -> None:
        # The candidate has vanished.
        night.remarks.append("word-lm: a remark")
        night.tables["word-lm"] = {"measurements": [baseline(night.info.run_id, DAY)]}
        nightly.steps.record(night.info, night.tables["word-lm"], night.store, "word-lm")

    monkeypatch.setattr(nightly, "_measure", measure)
    state = nightly._carry_out(night, Reporter())
    summary = state.result(raise_on_failure=False)
    assert isinstance(summary, NightSummary)
    assert [payload["message"] for payload in received] == ["1 regression: word-lm dynamic/eager vanished"]
    (run,) = rows(night.store, f"select status, message from runs where run_id = '{night.info.run_id}'")
    assert summary.remarks == ("word-lm: a remark",)
    assert state.message == f"{summary.message}; word-lm: a remark"
    assert run["message"].endswith("; word-lm: a remark")
    if what:
        # Prefect's server reports a night whose state is ``Failed``.
        assert (state.name, summary.exit_code, run["status"]) == ("Failed", 1, "failed")
        assert f"{what} failed: " in run["message"]
        assert f"{what} failed: " in summary.message
    else:
        assert (state.name, summary.exit_code, run["status"]) == ("Regressed", 3, "completed")
        assert (Path(night.store) / f"reports/{DAY}.html").is_file()
    assert [row["kind"] for row in rows(night.store, "from findings")] == ["vanished"]


class Killed(BaseException):
    """The process is dead from here on."""


def test_a_kill_in_one_benchmark_loses_no_rows_of_measured_workloads(
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


def test_a_winner_that_cannot_be_packaged_is_held_and_the_current_bundle_renewed(begin: Begin) -> None:
    night = begin(signing_key=str(key_file()))
    bundles = BundleStore(night.store, night.settings.signer())
    version = publish(bundles, 1, "demo")
    before = bundles.pointer("demo")
    faster = row("half/torchscript", over_current=2.0, over_current_low=1.9)
    night.tables["demo"] = {"measurements": [row(setting="current"), faster]}
    found = WorkloadResult(
        workload=workload(), job=JOB, candidates=(candidate("half"),), current=CurrentBundle(version=version)
    )
    with executing(night.settings, Reporter()):
        nightly._publish(night, found)
    (decided,) = rows(night.store, "select decision, reason, current_version, current_stays from promotions")
    assert (decided["decision"], decided["current_version"], decided["current_stays"]) == ("hold", version, True)
    assert "its bundle could not be built: " in decided["reason"]
    assert night.bundles == {"demo": version}
    assert night.problems["publishing demo"].endswith(f"; {version} stays current")
    now = bundles.pointer("demo")
    assert before is not None
    assert now is not None
    assert (now.version, now.serial) == (version, before.serial + 1)


def test_a_defect_in_one_publication_does_not_affect_other_workloads(begin: Begin) -> None:
    night = begin()
    results = [
        WorkloadResult(workload=workload().model_copy(update={"name": name}), job=JOB, candidates=(candidate("int8"),))
        for name in ("first", "second")
    ]
    night.tables["second"] = {"measurements": [row(workload="second")]}  # the other one has no rows at all
    with executing(night.settings, Reporter()):
        for result in results:
            night.attempt(f"publishing {result.workload.name}", partial(nightly._publish, night, result))
    assert rows(night.store, "select workload, decision from promotions") == [
        {"workload": "second", "decision": "hold"}
    ]
    assert night.problems["publishing first"] == "'first'"
