"""What a night does whose Prefect server goes in mid-run and stays away."""

import pytest

from storage.check import check
from storage.results.query import run_query
from tests.flows.processes import NIGHTQUANT
from tests.flows.tiny import tiny

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]


def _end(command):
    output, _ = command.process.communicate(timeout=400)
    assert command.wait_until_gone() == []
    assert "Traceback" not in output, output
    return command.process.returncode, output


def test_a_server_that_disappears_in_mid_run_is_one_message_and_loses_no_measurement(site):
    site.variables["PREFECT_CLIENT_MAX_RETRIES"] = "1"  # five by default, which takes a minute
    (site.folder / "tiny.toml").write_text(tiny("tiny", int8=False))
    asked = ("nightly", "--workload", str(site.folder / "tiny.toml"), "--profile", "quick")
    night = site.command(*asked, program=NIGHTQUANT)
    night.wait_for("obtain checkpoint: done")
    site.kill_server()
    code, output = _end(night)
    assert code == 1, output
    assert "stopped responding" in output
    assert "If you started the server yourself, start it again." in output
    assert run_query(site.store, "SELECT status FROM runs").to_pylist() == [{"status": "completed"}]
    rows = run_query(site.store, "SELECT status FROM measurements WHERE setting = 'primary'").to_pylist()
    assert rows == [{"status": "ok"}]
    assert check(site.store).problems == ()

    code, output = _end(site.command(*asked, program=NIGHTQUANT))
    assert code == 2, output
    assert "is not responding" in output
