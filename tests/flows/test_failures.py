"""What goes wrong around a night: its workloads, its disk, its Prefect server; and how the next one goes on."""

import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import save_file

from storage.check import check
from storage.results.query import run_query
from tests.flows.processes import quick_night

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

WORKLOAD = """
    schema_version = 1
    name = "{name}"
    description = "A few tiny pictures"
    purpose = "image-classification"
    [data]
    kind = "rendered-characters"
    characters = "OXT"
    image_size = 16
    train = 30
    calibration = 12
    valid = 9
    test = 18
    [model]
    kind = "factory"
    factory = "own_networks:{factory}"
    [checkpoint]
    {checkpoint}
    [[recipe]]
    name = "float"
    method = "none"
    [benchmark]
    baseline = "float/eager"
"""

# The kernel ends a process for which there is no memory by SIGKILL; this is what it looks like from outside.
NETWORKS = """
    import os, signal, threading
    from torch import nn

    def good():
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))

    def hanging():
        threading.Event().wait()

    def greedy():
        os.kill(os.getpid(), signal.SIGKILL)

    def huge():
        return nn.Linear(10**7, 10**7)
"""

SEEDED = 'kind = "seeded"\n    seed = 1'

# By the workload's name: its factory, its checkpoint, and what its error must say.
FAILING = {
    "hanging": ("hanging", SEEDED, "NIGHTQUANT_STAGE_TIMEOUT_S"),
    "greedy": ("greedy", SEEDED, "memory"),
    "huge": ("huge", SEEDED, "can't allocate memory"),
    "broken": ("good", 'kind = "uri"\n    uri = "weights.safetensors"', "weights.safetensors"),
}
WORKLOADS = FAILING | {
    "good": ("good", SEEDED, ""),
    "half": ("good", 'kind = "uri"\n    uri = "half.safetensors"', ""),
}


@pytest.fixture(scope="module")
def home(migrated_home, tmp_path_factory):
    return shutil.copytree(migrated_home, tmp_path_factory.mktemp("home") / "prefect")


def _end(command):
    output, _ = command.process.communicate(timeout=400)
    assert command.wait_until_gone() == []
    assert "Traceback" not in output, output
    return command.process.returncode, output


def test_workloads_that_hang_die_or_are_broken_fail_alone(home, tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(textwrap.dedent(NETWORKS))
    for name, (factory, checkpoint, _) in WORKLOADS.items():
        text = WORKLOAD.format(name=name, factory=factory, checkpoint=checkpoint)
        (tmp_path / f"{name}.toml").write_text(textwrap.dedent(text))
    (tmp_path / "weights.safetensors").write_bytes(b"no weights")
    save_file({"1.weight": torch.zeros(3, 768).half(), "1.bias": torch.zeros(3)}, tmp_path / "half.safetensors")
    # Long enough for any stage that is well, also where other work runs beside it.
    monkeypatch.setenv("NIGHTQUANT_STAGE_TIMEOUT_S", "90")
    store = tmp_path / "store"
    code, output = _end(quick_night(store, *(f"{name}.toml" for name in WORKLOADS), home=home, cwd=tmp_path))
    assert code == 1, output
    rows = run_query(
        store, "SELECT workload, status, stage, error FROM measurements WHERE setting = 'primary'"
    ).to_pylist()
    errors = {row["workload"]: row["error"] for row in rows if row["status"] == "failed"}
    assert set(errors) == set(FAILING)
    assert all(said in errors[name] for name, (_, _, said) in FAILING.items()), errors
    assert {row["stage"] for row in rows if row["status"] == "failed"} == {"checkpoint"}
    assert {row["workload"]: row["status"] for row in rows if row["status"] != "failed"} == {"good": "ok", "half": "ok"}
    assert output.count("half: the checkpoint's file: converted float16 values to float32") == 1
    (run,) = run_query(store, "SELECT status, candidates_ok, candidates_failed FROM runs").to_pylist()
    assert run == {"status": "failed", "candidates_ok": 2, "candidates_failed": len(FAILING)}


@pytest.fixture
def disk(tmp_path):
    """A small file system of its own, and a way to change it while it is mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")

    mount("size=64k")
    yield folder, mount
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_or_locked_disk_is_one_message_and_the_next_night_goes_on(disk, home, tmp_path):
    folder, mount = disk
    store = folder / "store"
    code, output = _end(quick_night(store, "lstm-demo", home=home, cwd=tmp_path))
    assert code in (1, 2), output
    assert re.search("cannot be written: No space left on device. Free some space", output), output

    mount("remount,ro")
    code, output = _end(quick_night(store, "lstm-demo", home=home, cwd=tmp_path))
    assert code == 2, output
    assert output.count("\n") == 1, output
    assert "cannot be written: Read-only file system" in output

    mount("remount,rw,size=64m")
    code, output = _end(quick_night(store, "lstm-demo", home=home, cwd=tmp_path))
    assert code == 0, output
    assert check(store).problems == ()
    assert run_query(store, "SELECT count(*) AS n FROM measurements WHERE status = 'ok'").to_pylist()[0]["n"] >= 4


@pytest.fixture
def own_server(home, monkeypatch):
    """Start a Prefect server that nights are pointed at; it ends with the test at the latest."""
    started = []

    def start():
        server = subprocess.Popen(
            [sys.executable, "-m", "flows.execution.server_process"],
            env=os.environ | {"PREFECT_HOME": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(server)
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.stdout.readline().strip()}/api")
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
    assert "is gone" in output
    assert "Start it again" in output
    assert run_query(store, "SELECT status FROM runs").to_pylist() == [{"status": "completed"}]
    rows = run_query(store, "SELECT status FROM measurements WHERE setting = 'primary'").to_pylist()
    assert rows == [{"status": "ok"}] * 4
    assert check(store).problems == ()

    code, output = _end(quick_night(store, "lstm-demo", home=home, cwd=tmp_path))
    assert code == 2, output
    assert "does not answer" in output
