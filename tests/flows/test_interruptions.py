"""What a night leaves behind when it is stopped, softly or by SIGKILL."""

import contextlib
import os
import random
import signal
import subprocess

import pytest

from storage.check import check
from storage.results.query import run_query
from tests.flows.processes import Command

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(1500)]

# The full proof takes 50 (KILLS_OF_THIS_TEST=50); a few are enough to see on every change that nothing has come loose.
KILLS = int(os.environ.get("KILLS_OF_THIS_TEST", "6"))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("prefect")


def _night(store, home, cwd):
    return Command(
        "nightly", "--workload", "lstm-demo", "--profile", "quick", "--store", str(store), home=home, cwd=cwd
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_stopped_night_says_what_was_left_and_leaves_no_process(number, home, tmp_path):
    store = tmp_path / "store"
    command = _night(store, home, tmp_path)
    command.wait_for("lstm-demo: benchmark …")
    command.process.send_signal(number)
    output, _ = command.process.communicate(timeout=10)
    assert command.process.returncode == 128 + number
    assert "Traceback" not in output
    assert command.wait_until_gone() == []
    (run,) = run_query(store, "SELECT status, message FROM runs").to_pylist()
    assert run["status"] == "cancelled"
    assert "not measured: lstm-demo" in run["message"]
    assert check(store).problems == ()


def test_killed_nights_leave_a_whole_store_and_no_process_and_the_next_one_goes_on(home, tmp_path):
    store = tmp_path / "store"
    chance = random.Random(20261121)
    for _ in range(KILLS):
        command = _night(store, home, tmp_path)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.process.wait(chance.uniform(1.0, 25.0))
        command.process.kill()
        command.process.wait()
        assert command.wait_until_gone() == []
        assert check(store).problems == ()
    last = _night(store, home, tmp_path)
    output, _ = last.process.communicate(timeout=300)
    assert last.process.returncode == 0, output
    assert last.wait_until_gone() == []
    assert check(store).problems == ()
    doubled = run_query(
        store,
        "SELECT run_id, recipe, runtime, setting, attempt FROM measurements GROUP BY ALL HAVING count(*) > 1",
    )
    assert doubled.num_rows == 0
    finished = run_query(store, "SELECT count(*) AS n FROM runs WHERE status = 'completed'").to_pylist()
    assert finished[0]["n"] >= 1
