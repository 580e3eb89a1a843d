"""What a night leaves behind when it is stopped, softly or by SIGKILL, and how the next one goes on."""

import contextlib
import os
import random
import signal
import subprocess
from importlib.resources import files

import pytest

from storage.check import check
from storage.results.catalog import CATALOG
from storage.results.query import run_query
from tests.flows.processes import quick_night

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

# The full proof takes 50 (KILLS_OF_THIS_TEST=50); a few are enough to see on every change that nothing has come loose.
KILLS = int(os.environ.get("KILLS_OF_THIS_TEST", "4"))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("prefect")


def _signal_all(command, number):
    """Signal every process of the command, as a service manager that stops its control group does."""
    for pid, _ in command.survivors():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _artifacts(store):
    """Inode and time of every file of every finished artifact."""
    files = (path for path in (store / "artifacts").glob("*/[0-9a-f][0-9a-f]/*/**/*") if path.is_file())
    return {str(path.relative_to(store)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize(
    ("number", "stage", "send"),
    [
        (signal.SIGTERM, "dynamic-int8/eager: build …", lambda command, number: command.process.send_signal(number)),
        (signal.SIGTERM, "lstm-demo: benchmark …", _signal_all),
        (signal.SIGINT, "lstm-demo: benchmark …", _signal_all),
    ],
    ids=["SIGTERM", "SIGTERM to all", "SIGINT to all"],
)
def test_a_stopped_night_says_what_was_left_and_leaves_no_process(number, stage, send, home, tmp_path):
    store = tmp_path / "store"
    command = quick_night(store, "lstm-demo", home=home, cwd=tmp_path)
    command.wait_for(stage)
    send(command, number)
    output, _ = command.process.communicate(timeout=120)
    assert command.process.returncode == 128 + number, output
    assert "not measured: lstm-demo" in output
    assert f"Stopped by {number.name}" in output
    assert "Traceback" not in output
    assert command.wait_until_gone() == []
    (run,) = run_query(store, "SELECT status, message FROM runs").to_pylist()
    assert run["status"] == "cancelled"
    assert "not measured: lstm-demo" in run["message"]
    assert check(store).problems == ()


def test_a_night_that_is_stopped_while_its_server_starts_ends_with_it(home, tmp_path):
    command = quick_night(tmp_path / "store", "lstm-demo", home=home, cwd=tmp_path)
    command.wait_for("Prefect's server …")
    while not any("flows.execution.server_process" in line for _, line in command.survivors()):
        assert command.process.poll() is None
    command.process.send_signal(signal.SIGTERM)
    # Less than the 90 s that a server is given to start in: nobody waits for one that is not wanted any more.
    output, _ = command.process.communicate(timeout=80)
    assert command.process.returncode == 128 + signal.SIGTERM, output
    assert "Stopped by SIGTERM" in output
    assert command.wait_until_gone() == []


def test_a_stopped_night_keeps_the_rows_of_the_workloads_that_were_through(home, tmp_path):
    demo = (files("flows.workloads") / "lstm-demo.toml").read_text()
    (tmp_path / "later.toml").write_text(demo.replace('name = "lstm-demo"', 'name = "later"'))
    store = tmp_path / "store"
    command = quick_night(store, "lstm-demo", "later.toml", home=home, cwd=tmp_path)
    command.wait_for("later: benchmark …")
    command.process.send_signal(signal.SIGTERM)
    output, _ = command.process.communicate(timeout=120)
    assert command.process.returncode == 128 + signal.SIGTERM, output
    assert "not measured: later" in output
    rows = run_query(store, "SELECT workload, status FROM measurements WHERE setting = 'primary'").to_pylist()
    assert [(row["workload"], row["status"]) for row in rows] == [("lstm-demo", "ok")] * 4
    assert check(store).problems == ()


# Where a night is killed: after the line with this text, or before its first line; a while later, in seconds.
MOMENTS = {
    "": 4.0,
    "prepare data set …": 1.0,
    "obtain checkpoint …": 1.0,
    "build …": 1.0,
    "evaluate …": 1.0,
    "benchmark …": 20.0,
    "benchmark: done": 4.0,
}


def test_killed_nights_leave_a_whole_store_and_no_process_and_the_next_one_goes_on(home, tmp_path):
    store = tmp_path / "store"
    chance = random.Random(20261121)
    before = {}
    for _ in range(KILLS):
        command = quick_night(store, "lstm-demo", home=home, cwd=tmp_path)
        moment = chance.choice(list(MOMENTS))
        if moment:
            command.wait_for(moment)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.process.communicate(timeout=chance.uniform(0.0, MOMENTS[moment]))
        command.process.kill()
        command.process.wait()
        assert command.wait_until_gone() == []
        # Killed between a file of results and the catalog, a night leaves the catalog of the one before it.
        assert {problem.where for problem in check(store).problems} <= {CATALOG}
        after = _artifacts(store)
        assert before.items() <= after.items()
        before = after
    last = quick_night(store, "lstm-demo", home=home, cwd=tmp_path)
    output, _ = last.process.communicate(timeout=300)
    # 3: a machine that others load may be slower than in an earlier night.
    assert last.process.returncode in (0, 3), output
    assert last.wait_until_gone() == []
    assert check(store).problems == ()
    assert before.items() <= _artifacts(store).items()
    doubled = run_query(
        store,
        "SELECT run_id, recipe, runtime, setting, threads, batch_size, attempt FROM measurements "
        "GROUP BY ALL HAVING count(*) > 1",
    )
    assert doubled.num_rows == 0
    finished = run_query(store, "SELECT count(*) AS n FROM runs WHERE status = 'completed'").to_pylist()
    assert finished[0]["n"] >= 1
