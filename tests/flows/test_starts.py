"""Every way to start a run of a deployment, on a real server: `serve` and a worker, by hand and by schedule.

The runs of most tests find the store locked, so that they end as soon as they have begun.
"""

import datetime as dt
import shutil
import uuid
from importlib.resources import files

import pytest

from storage.holder import Holder, hold
from tests.flows.site import FINAL, Site

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

# In this zone, the dates of both schedules are one day earlier than in the zones of the schedules.
HOST = dt.timezone(dt.timedelta(hours=-12))
SERVE = ("--workload", "own.toml", "--profile", "quick", "--cron", "30 1 * * *", "--timezone", "Europe/Berlin")
DAY = dt.date(2026, 3, 29)  # Berlin's clocks change in this night


class Starts:
    """A site whose commands run in a folder of their own, with a workload file that is only there."""

    def __init__(self, folder, migrated_home):
        self.site = Site(folder)
        self.site.variables["TZ"] = "Etc/GMT+12"
        shutil.copytree(migrated_home, folder / "prefect")
        self.folder = folder / "elsewhere"
        self.folder.mkdir()
        demo = (files("flows.workloads") / "lstm-demo.toml").read_text()
        (self.folder / "own.toml").write_text(demo.replace('name = "lstm-demo"', 'name = "own"'))
        self.site.start_server()

    def deployment(self, name):
        found = self.site.asked(f"/deployments/name/{name}")
        return found and found["id"]

    def by_hand(self, name, parameters):
        """Start a run, even if SQLite is locked for a moment; the key keeps a second answer from being a second run."""
        body = {"parameters": parameters, "idempotency_key": uuid.uuid4().hex}
        path = f"/deployments/{self.deployment(name)}/create_flow_run"
        return self.site.wait_for(lambda: self.site.asked(path, body), 60)["id"]

    def by_schedule(self, name):
        """Let the server schedule one run for a night that is long past, and give the run."""
        deployment = self.deployment(name)
        noon = dt.datetime.combine(DAY, dt.time(), dt.UTC) - dt.timedelta(hours=12)
        span = {"start_time": noon.isoformat(), "end_time": (noon + dt.timedelta(1)).isoformat(), "max_runs": 1}
        chosen = {"deployments": {"id": {"any_": [deployment]}}}

        def scheduled():
            self.site.asked(f"/deployments/{deployment}/schedule", span)
            runs = self.site.asked("/flow_runs/filter", chosen) or ()
            return [run["id"] for run in runs if run["auto_scheduled"]]

        (run,) = self.site.wait_for(scheduled, 60)
        return run

    def ended(self, run):
        """Name, type and message of a run that has come to its end."""
        found = self.site.wait_for(lambda: self._final(run), 400)
        return found["name"], found["state"]["type"], found["state"]["message"]

    def _final(self, run):
        found = self.site.asked(f"/flow_runs/{run}")
        return found if found and found["state"]["type"] in FINAL else None


@pytest.fixture(scope="module")
def ended(migrated_home, tmp_path_factory):
    """Ends of the runs that were started while this process locked the store; and the host's dates meanwhile."""
    starts = Starts(tmp_path_factory.mktemp("starts"), migrated_home)
    site, dates = starts.site, {dt.datetime.now(HOST).date()}
    with hold(site.store, Holder("another", "")):
        site.start_serving(*SERVE, cwd=starts.folder)
        site.done("--no-prompt", "work-pool", "create", "nightquant", "--type", "nightquant")
        site.done("--no-prompt", "deploy", "--all")
        site.start_worker(cwd=starts.folder)
        own = {"request": {"workloads": ["lstm-demo"], "recipes": ["dynamic-int8"], "profile": "quick"}}
        runs = {
            "served by schedule": starts.by_schedule("nightly-quantization/served"),
            "served by hand": starts.by_hand("nightly-quantization/served", own),
            "deployed by schedule": starts.by_schedule("nightly-quantization/nightly"),
            "deployed by hand": starts.by_hand("nightly-quantization/nightly", own),
            "compaction": starts.by_hand("compact-results/compact-results", {}),
        }
        found = {name: starts.ended(run) for name, run in runs.items()}
    site.cut_power()
    return found | {"dates": dates | {dt.datetime.now(HOST).date()}}


@pytest.mark.parametrize(("way", "workloads"), [("served", "own"), ("deployed", "every workload")])
def test_a_schedule_starts_the_declared_run_for_the_date_in_its_own_zone_however_late(ended, way, workloads):
    name, state, message = ended[f"{way} by schedule"]
    assert name == f"night {DAY}: {workloads}"
    assert state == "CANCELLED", message
    assert "run another (process " in message


@pytest.mark.parametrize("way", ["served", "deployed"])
def test_a_run_by_hand_has_its_own_parameters_and_the_hosts_date(ended, way):
    name, state, message = ended[f"{way} by hand"]
    assert name in {f"night {date}: lstm-demo" for date in ended["dates"]}
    assert state == "CANCELLED", message
    assert "run another (process " in message


def test_the_compaction_runs_in_the_worker(ended):
    _, state, message = ended["compaction"]
    assert state == "COMPLETED", message
