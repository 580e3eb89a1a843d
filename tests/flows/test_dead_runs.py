"""Which flow runs a night ends: those that the store says are over, and that Prefect takes for alive."""

from __future__ import annotations

import datetime as dt
import uuid
from pathlib import Path

import pytest

from storage.holder import Holder, hold
from storage.results.writer import ResultsStore
from tests.storage.results.rows import at, run_row

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]


def _died(store: Path, flow_run_id: str) -> None:
    with pytest.raises(RuntimeError), hold(store, Holder(f"night-{flow_run_id[-4:]}", flow_run_id)):
        raise RuntimeError


def test_only_dead_nights_that_prefect_calls_alive_are_crashed(tmp_path: Path) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.states import Completed, Running

    from flows.findings import end_dead_runs

    nothing = flow(lambda: None, name="nightly-quantization")
    unknown = str(uuid.uuid4())
    with get_client(sync_client=True) as client:
        states = {"dead": Running(), "ended": Completed(), "of another": Running(), "retried": Running()}
        runs = {name: client.create_flow_run(nothing, state=state).id for name, state in states.items()}
        for name in ("dead", "ended", "retried"):
            _died(tmp_path, str(runs[name]))
        _died(tmp_path, unknown)
        with hold(tmp_path, Holder("now", str(runs["retried"]))) as held:
            end_dead_runs(held, str(runs["retried"]))
            # Another server may know it.
            assert [each.flow_run_id for each in held.dead] == [unknown]
        found = {name: client.read_flow_run(run).state for name, run in runs.items()}
    assert {name: state.type.value for name, state in found.items() if state} == {
        "dead": "CRASHED",
        "ended": "COMPLETED",
        "of another": "RUNNING",
        "retried": "RUNNING",
    }
    dead = found["dead"]
    assert dead is not None
    assert f"run night-{str(runs['dead'])[-4:]} (process " in str(dead.message)


def test_runs_that_ended_without_a_server_get_their_state_from_the_store(tmp_path: Path) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.states import Completed, Running

    from flows.findings import end_unreported_runs

    nothing, day = flow(lambda: None, name="nightly-quantization"), dt.date(2026, 3, 1)
    states = {"lost": Running(), "retried": Running(), "ended": Completed(), "at work": Running(), "this": Running()}
    recorded = {"lost": ["completed"], "retried": ["completed", "cancelled"], "ended": ["failed"], "this": ["failed"]}
    with get_client(sync_client=True) as client:
        runs = {name: client.create_flow_run(nothing, state=state).id for name, state in states.items()}
        for name, ends in recorded.items():
            for attempt, status in enumerate(ends):
                about = {"status": status, "prefect_flow_run_id": str(runs[name]), "message": f"{name} was {status}"}
                row = run_row(f"{name}-{attempt}", day, finished_at=at(day, 4 + attempt), **about)
                ResultsStore(tmp_path).append("runs", [row], row["run_id"], at(day))
        end_unreported_runs(str(tmp_path), str(runs["this"]))
        found = {name: client.read_flow_run(run).state for name, run in runs.items()}
    assert {name: (state.type.value, state.message) for name, state in found.items() if state} == {
        "lost": ("COMPLETED", "lost was completed"),
        "retried": ("CANCELLED", "retried was cancelled"),
        "ended": ("COMPLETED", None),
        "at work": ("RUNNING", None),
        "this": ("RUNNING", None),
    }
