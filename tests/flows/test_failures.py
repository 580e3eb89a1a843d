"""What goes wrong around a night: its disk, its Prefect server; and how the next night goes on."""

import os
import shutil
import socket
import subprocess
import sys

import pytest

from storage.check import check
from storage.results.query import run_query
from tests.flows.processes import quick_night

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def home(migrated_home, tmp_path_factory):
    return shutil.copytree(migrated_home, tmp_path_factory.mktemp("home") / "prefect")


def _end(command):
    output, _ = command.process.communicate(timeout=400)
    assert command.wait_until_gone() == []
    assert "Traceback" not in output, output
    return command.process.returncode, output


@pytest.fixture
def own_server(home, monkeypatch):
    """Start a Prefect server that nights are pointed at; it ends with the test at the latest."""
    started = []

    def start():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = subprocess.Popen(
                [sys.executable, "-m", "flows.execution.server", str(listener.fileno())],
                env=os.environ | {"PREFECT_HOME": str(home)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )
            monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{listener.getsockname()[1]}/api")
        started.append(server)
        assert server.stdout.readline()
        return server

    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "1")  # five by default, which takes a minute
    yield start
    for server in started:
        server.kill()
        server.wait()


def test_a_server_that_goes_in_mid_run_and_stays_away_is_one_message_and_costs_no_measurement(
    own_server, home, tmp_path
):
    store = tmp_path / "store"
    server = own_server()
    night = quick_night(store, "lstm-demo", home=home, cwd=tmp_path)
    night.wait_for("obtain checkpoint: done")
    server.kill()
    server.wait()
    code, output = _end(night)
    assert code == 1, output
    assert "stopped responding" in output
    assert "If you started the server yourself, start it again." in output
    assert run_query(store, "SELECT status FROM runs").to_pylist() == [{"status": "completed"}]
    rows = run_query(store, "SELECT status FROM measurements WHERE setting = 'primary'").to_pylist()
    assert rows == [{"status": "ok"}] * 4
    assert check(store).problems == ()

    code, output = _end(quick_night(store, "lstm-demo", home=home, cwd=tmp_path))
    assert code == 2, output
    assert "is not responding" in output
