"""A night on Dask: every row is there, and no process is left."""

import contextlib
import json
import shutil
import signal
import sys
import time

import pytest

from storage.check import check
from storage.results.query import run_query
from tasks.environment.machine import fingerprint
from tests.flows.processes import STAGES, Command, processes_of_stages
from tests.flows.tiny import tiny
from tests.storage.conftest import s3_endpoint, s3_store  # noqa: F401 - fixtures

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

NIGHT = ("nightly", "--workload", "tiny.toml", "--profile", "quick")


@pytest.fixture
def home(migrated_home, tmp_path):
    """A home of the test's own: the log in it is read afterwards."""
    return shutil.copytree(migrated_home, tmp_path / "prefect")


def _address_in(file):
    """Wait until the scheduler has written its file, which it does not do at once."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return json.loads(file.read_text())["address"]
        time.sleep(0.1)
    raise AssertionError("the scheduler did not start")


@pytest.fixture
def dask_cluster(home, tmp_path, request):
    """A scheduler and two workers in another folder than the night's; gives address, workers and a store on S3."""
    pytest.importorskip("distributed", reason="the dask extra is not installed")
    store = request.getfixturevalue("s3_store")  # first: a worker needs the store's credentials in its environment
    folder = tmp_path / "cluster"
    folder.mkdir()
    file = folder / "scheduler.json"
    common = ("--scheduler-file", str(file), "--no-dashboard")

    def start(kind, *arguments):
        program = (sys.executable, "-m", f"distributed.cli.dask_{kind}")
        return Command(*common, *arguments, home=home, cwd=folder, program=program)

    scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0")
    address = _address_in(file)
    workers = start("worker", "--nworkers", "2", "--nthreads", "1")
    yield address, workers, store
    left = []
    for command in (workers, scheduler):
        command.process.send_signal(signal.SIGTERM)
        command.process.communicate(timeout=60)
        left += command.wait_until_gone()
    assert left == []


def test_a_night_on_a_cluster_of_separate_processes_with_the_store_on_s3(dask_cluster, home, tmp_path, monkeypatch):
    address, workers, store = dask_cluster
    of_cluster = {pid for pid, _ in workers.survivors()}
    monkeypatch.setenv("NIGHTQUANT_DASK_ADDRESS", address)
    monkeypatch.setenv("NIGHTQUANT_FINGERPRINT", fingerprint())
    (tmp_path / "tiny.toml").write_text(tiny("tiny"))
    command = Command(*NIGHT, "--store", store, home=home, cwd=tmp_path, NIGHTQUANT_TASK_RUNNER="dask")
    output, _ = command.process.communicate(timeout=600)
    assert command.process.returncode == 0, output
    assert command.wait_until_gone() == []
    rows = run_query(store, "SELECT recipe, runtime, status FROM measurements").to_pylist()
    assert {(row["recipe"], row["runtime"]) for row in rows} == {("float", "eager"), ("int8", "torchscript")}
    assert {row["status"] for row in rows} == {"ok"}
    assert check(store).problems == ()
    ran = processes_of_stages(home)
    assert ran.keys() == STAGES
    of_cluster |= {pid for pid, _ in workers.survivors()}
    assert set().union(*ran.values()) <= of_cluster
