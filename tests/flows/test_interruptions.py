"""What a night leaves behind when it is stopped, softly or by SIGKILL, and how the next one goes on."""

import contextlib
import os
import shutil
import signal

import pytest

from storage.check import check
from storage.results.query import run_query
from tests.flows.processes import quick_night
from tests.flows.tiny import tiny

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def home(migrated_home, tmp_path_factory):
    return shutil.copytree(migrated_home, tmp_path_factory.mktemp("home") / "prefect")


def _signal_all(command, number):
    """Signal every process of the command, as a service manager that stops its control group does."""
    for pid, _ in command.survivors():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "stage", "send", "kept", "missing"),
    [
        (
            signal.SIGTERM,
            "float/eager: build …",
            lambda command, number: command.process.send_signal(number),
            0,
            "first, later",
        ),
        (signal.SIGINT, "later: benchmark …", _signal_all, 1, "later"),
    ],
    ids=["SIGTERM", "SIGINT to all"],
)
def test_a_stopped_night_keeps_its_measurements_reports_the_rest_and_leaves_no_process(
    number, stage, send, kept, missing, home, tmp_path
):
    for name in ("first", "later"):
        (tmp_path / f"{name}.toml").write_text(tiny(name, int8=False))
    store = tmp_path / "store"
    command = quick_night(store, "first.toml", "later.toml", home=home, cwd=tmp_path)
    command.wait_for(stage)
    send(command, number)
    _require_stopped(command, number, missing, store)
    rows = run_query(store, "SELECT workload, status FROM measurements WHERE setting = 'primary'").to_pylist()
    assert rows == [{"workload": "first", "status": "ok"}] * kept


def _require_stopped(command, number, missing, store):
    output, _ = command.process.communicate(timeout=120)
    assert command.process.returncode == 128 + number, output
    assert f"not measured: {missing}" in output
    assert f"Stopped by {number.name}" in output
    assert "Traceback" not in output
    assert command.wait_until_gone() == []
    (run,) = run_query(store, "SELECT status, message FROM runs").to_pylist()
    assert run["status"] == "cancelled"
    assert f"not measured: {missing}" in run["message"]
    assert check(store).problems == ()


def test_a_night_that_is_stopped_while_its_server_starts_ends_with_it(home, tmp_path):
    command = quick_night(tmp_path / "store", "lstm-demo", home=home, cwd=tmp_path)
    command.wait_for("Prefect's server …")
    while not any("flows.execution.server" in line for _, line in command.survivors()):
        assert command.process.poll() is None
    command.process.send_signal(signal.SIGTERM)
    # Less than the 90 s that a server is given to start in: nobody waits for one that is not wanted any more.
    output, _ = command.process.communicate(timeout=80)
    assert command.process.returncode == 128 + signal.SIGTERM, output
    assert "Stopped by SIGTERM" in output
    assert command.wait_until_gone() == []
