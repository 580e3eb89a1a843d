"""What becomes of nights when everything is killed at once, or their server alone, on a real server with a worker."""

import json
import sys

import pytest

from storage.check import check
from storage.results.query import run_query
from tests.flows.site import FINAL, Site, postgresql
from tests.flows.tiny import tiny, write_sleeping

pytestmark = [pytest.mark.long, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(900)]

NIGHTLY = "nightly-quantization/nightly"


@pytest.fixture
def site(tmp_path):
    with postgresql() as database:
        yield Site(tmp_path, database)


def test_the_night_after_a_power_cut_runs_and_outlives_its_server_and_the_dead_one_is_crashed(site):
    site.start_server()
    site.start_worker()
    site.done("--no-prompt", "work-pool", "create", "nightquant", "--type", "nightquant", "--overwrite")
    site.done("--no-prompt", "deploy", "--name", "nightly", "--pool", "nightquant")
    (site.folder / "tiny.toml").write_text(tiny("tiny", int8=False))
    # A night that has not come to its end when it is killed, however fast or busy the machine is.
    sleeping = write_sleeping(site.folder, 3600)
    long = {"request": {"workloads": ["lstm-demo", str(sleeping)], "profile": "quick"}}
    short = {"request": {"workloads": [str(site.folder / "tiny.toml")], "profile": "quick"}}
    site.start_run(NIGHTLY, long)
    # Artifacts: it is at work, not only begun.
    site.wait_for(lambda: list((site.store / "artifacts").glob("*/*/*")), 240)
    (holder,) = json.loads((site.store / ".locks" / "night.json").read_text())

    site.start_run(NIGHTLY, short)
    state, message = site.wait_for(lambda: _final(site.states()[1:]), 120)
    assert state == "CANCELLED"
    assert f"run {holder['run_id']} (process {holder['pid']}" in message
    refused = site.command("nightly", "--workload", "lstm-demo", program=(sys.executable, "-m", "flows"))
    output, _ = refused.process.communicate(timeout=120)
    assert refused.process.returncode == 4, output
    assert f"run {holder['run_id']}" in output
    assert "Traceback" not in output

    site.cut_power()
    site.database.start()
    site.start_server()
    site.start_worker()
    assert site.states()[0][0] == "RUNNING"
    site.start_run(NIGHTLY, short)
    # The server alone is killed in the middle of this night, and started again.
    site.wait_for(lambda: _holder(site) not in (None, holder), 240)
    site.kill_server()
    site.start_server()
    state, message = site.wait_for(lambda: _final(site.states()[-1:]), 400)
    assert state == "COMPLETED", message
    state, message = site.states()[0]
    assert (state, holder["run_id"] in message) == ("CRASHED", True)
    assert json.loads((site.store / ".locks" / "night.json").read_text()) == []
    # The database dies a moment before the night does, which may just have time to record that it failed.
    runs = run_query(site.store, "SELECT status FROM runs ORDER BY finished_at").to_pylist()
    assert runs in ([{"status": "completed"}], [{"status": "failed"}, {"status": "completed"}])
    assert check(site.store).problems == ()


def _holder(site):
    holders = json.loads((site.store / ".locks" / "night.json").read_text())
    return holders[-1] if holders else None


def _final(states):
    return next((state for state in states if state[0] in FINAL), None)
