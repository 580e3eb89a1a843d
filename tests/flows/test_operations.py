"""The pages about regular nights as written: their commands run in order against a real server and worker."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.documentation.pages import ROOT, Document
from tests.flows.processes import free_port

# A reader follows the pages in this order: the second needs the nights of the first.
PAGES = ("schedule.md", "monitoring.md")
BLOCKS = [block.text for page in PAGES for block in Document.read(ROOT / "docs" / page).shell if not block.not_run]

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def environment(migrated_home, tmp_path_factory):
    folder = tmp_path_factory.mktemp("operations")
    port = free_port()
    chosen = {
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "NIGHTQUANT_ROOT": str(ROOT),
        "NIGHTQUANT_STORE": str(folder / "store"),
        # The deployment's own schedule would begin a night where this test meets its hour.
        "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    shutil.copytree(migrated_home, folder / "prefect")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "NIGHTQUANT_"))}
    return inherited | chosen


@pytest.fixture(scope="module")
def in_background(environment, tmp_path_factory):
    """Start a command that runs for good, and give its log; all are ended with the module."""
    logs = tmp_path_factory.mktemp("logs")
    processes = []

    def start(command):
        log = logs / f"{len(processes)}.log"
        with log.open("w") as stream:
            processes.append(
                subprocess.Popen(
                    shlex.split(command),
                    env=environment,
                    cwd=ROOT,
                    stdout=stream,
                    stderr=stream,
                    start_new_session=True,
                )
            )
        return log

    yield start
    for process in reversed(processes):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def server(environment, in_background):
    log = in_background("prefect server start")
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{environment['PREFECT_API_URL']}/health", timeout=5) as answer:
                assert answer.status == 200
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"Prefect's server did not start:\n{log.read_text()}")


@pytest.mark.long
def test_from_nothing_to_a_scheduled_night(server, environment, in_background):
    shown = {}
    for command in [line for block in BLOCKS for line in block.splitlines() if line]:
        if command.startswith("prefect worker start"):
            in_background(command)
            continue
        done = subprocess.run(
            ["bash", "-c", command], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        shown[command] = done.stdout
    assert "lstm-demo" in shown['nightquant query "FROM leaderboard"']
    assert shown.keys() >= {"prefect --no-prompt deploy --all", "nightquant store check"}
    # Two runs of the deployment's smallest workload, found through DuckDB in the backup of the store.
    runs = subprocess.run(
        ["nightquant", "query", "--format", "csv", "SELECT count(*) AS n FROM runs WHERE candidates_failed = 0"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert runs.stdout.split() == ["n", "2"]
