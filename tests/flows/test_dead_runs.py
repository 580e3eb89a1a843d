"""Which flow runs a night ends: those that the store says are over, and that Prefect takes for alive."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from storage.holder import Holder, hold

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
        _died(tmp_path, "")
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
