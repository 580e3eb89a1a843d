"""One night at a time on a store, whatever became of the one before."""

from __future__ import annotations

import datetime as dt
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import Timeout

from storage.errors import NightRunningError
from storage.holder import Holder, LeasedError, hold, leased, record_dead_run
from storage.object_root import ObjectRoot
from storage.results.query import open_catalog, rows_of
from storage.results.writer import ResultsStore
from tests.storage.results.rows import at, baseline, measurement

_HOLD = """
import sys
from storage.holder import Holder, hold
with hold(sys.argv[1], Holder(sys.argv[2], "flow-of-" + sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


def _night(store: str | Path, run_id: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(store), run_id], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_night_is_refused_with_the_holder_of_the_store_and_the_start_time(tmp_path: Path) -> None:
    with _night(tmp_path, "first") as first:
        with pytest.raises(NightRunningError) as refused, hold(tmp_path, Holder("second", "")):
            pass
        assert f"run first (process {first.pid} on " in str(refused.value)
        assert " UTC" in str(refused.value)
        assert refused.value.exit_code == 4
        first.communicate("")
    with hold(tmp_path, Holder("third", "")) as held:
        assert held.dead == ()


def test_a_killed_night_frees_the_store_and_is_dead_until_it_is_forgotten(tmp_path: Path) -> None:
    for run in ("first", "second"):
        with _night(tmp_path, run) as night:
            night.send_signal(signal.SIGKILL)
    with hold(tmp_path, Holder("third", "")) as held:
        assert [(each.run_id, each.flow_run_id) for each in held.dead] == [
            ("first", "flow-of-first"),
            ("second", "flow-of-second"),
        ]
        held.forget(held.dead[0])
    with hold(tmp_path, Holder("fourth", "")) as held:
        assert [each.run_id for each in held.dead] == ["second"]


@pytest.mark.slow
def test_a_night_that_ends_with_an_error_is_looked_at_by_the_next(tmp_path: Path) -> None:
    with pytest.raises(Timeout, match="its own"), hold(tmp_path, Holder("first", "")):
        raise Timeout("its own")
    with hold(tmp_path, Holder("second", "")) as held:
        assert [each.run_id for each in held.dead] == ["first"]


@pytest.mark.slow
def test_a_night_on_an_object_store_keeps_out_those_of_other_hosts_until_it_ends(
    s3_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _night(s3_store, "first")
    monkeypatch.setenv("NIGHTQUANT_CACHE", str(tmp_path / "another host"))
    with first:
        with pytest.raises(NightRunningError, match=rf"run first \(process {first.pid}") as refused:
            hold(f"{s3_store}/", Holder("second", "")).__enter__()
        assert "the store is free in 1" in str(refused.value.hint)
        with hold(f"{s3_store}/elsewhere", Holder("third", "")):
            pass
        first.communicate("")
    with hold(s3_store, Holder("fourth", "")) as held:
        assert held.dead == ()


@pytest.mark.slow
def test_a_killed_night_frees_an_object_store_for_its_own_host_at_once_and_for_others_when_its_lease_ends(
    s3_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _night(s3_store, "first") as night:
        night.send_signal(signal.SIGKILL)
    with _night(s3_store, "second") as night:  # of its own host
        night.send_signal(signal.SIGKILL)
    monkeypatch.setenv("NIGHTQUANT_CACHE", str(tmp_path / "another host"))
    with pytest.raises(NightRunningError, match="run second"), hold(s3_store, Holder("third", "")):
        pass
    monkeypatch.setattr("storage.holder.LEASE_S", 1.0)
    time.sleep(1.1)
    with hold(s3_store, Holder("third", "")) as held:
        assert [(each.run_id, each.flow_run_id) for each in held.dead] == [("second", "flow-of-second")]


def test_a_dead_run_gets_a_row_once_if_it_measured_and_did_not_record_its_end(tmp_path: Path) -> None:
    run, day, writer = "20260301-030000-0", dt.date(2026, 3, 1), ResultsStore(tmp_path)
    dead = Holder(run, "", host="bench", pid=7, since=at(day, 2))
    assert not record_dead_run(tmp_path, dead)
    writer.append("measurements", [baseline(run, day), measurement(run, day, status="failed")], run, at(day), "word-lm")
    assert record_dead_run(tmp_path, dead)
    assert not record_dead_run(tmp_path, dead)
    with open_catalog(tmp_path, fresh=True) as connection:
        (row,) = rows_of(connection, "from runs")
    assert (row["run_id"], row["night"], row["status"], row["profile"]) == (run, day, "failed", "standard")
    assert (row["workloads"], row["candidates_ok"], row["candidates_failed"]) == (1, 1, 1)
    assert row["started_at"] == at(day, 2)
    assert "process 7 on bench" in str(row["message"])


NAME = ".locks/night.json"


def _nobody_is_dead(_: bytes) -> bool:
    return False


@pytest.mark.slow
def test_a_lease_that_is_renewed_is_kept(s3_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.holder.LEASE_S", 6.0)  # on a machine that others load, a renewal may take seconds
    monkeypatch.setattr("storage.holder._RENEW_S", 0.2)
    root = ObjectRoot(s3_store)
    with leased(root, NAME, b"first", _nobody_is_dead) as before:
        assert before == b""
        time.sleep(7.5)
        with pytest.raises(LeasedError) as refused:
            leased(root, NAME, b"second", _nobody_is_dead).__enter__()
        assert refused.value.content == b"first"
    with leased(root, NAME, b"third", _nobody_is_dead) as before:
        assert before == b""


@pytest.mark.slow
def test_a_run_that_has_lost_the_lease_reports_it_and_does_not_remove_the_next_lease(
    s3_store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("storage.holder._RENEW_S", 0.2)
    root = ObjectRoot(s3_store)
    with caplog.at_level(logging.WARNING), leased(root, NAME, b"first", _nobody_is_dead):
        # The next one takes the first for dead.
        second = leased(root, NAME, b"second", lambda _: True)
        assert second.__enter__() == b"first"
        deadline = time.monotonic() + 60
        while "is lost" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "is lost" in caplog.text
    found = root.stamped(NAME)
    assert found is not None
    assert found.content.endswith(b"second")
    second.__exit__(None, None, None)
