"""Every way to start a run of a deployment, on a real server, and to stop it with what runs it.

`serve` or a worker starts it, by hand or by schedule. These runs find the store locked, so that they end as soon as
they have begun. The runs that are stopped have begun to measure.
"""

import contextlib
import datetime as dt
import os
import shutil
import signal

import psutil
import pytest

from storage.check import check
from storage.holder import Holder, hold
from storage.results.query import run_query
from tests.flows.site import Site
from tests.flows.tiny import tiny

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.long, pytest.mark.timeout(900)]

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
        (self.folder / "own.toml").write_text(tiny("own"))
        self.site.start_server()

    def by_schedule(self, name):
        """Let the server schedule one run for a night that is long past, and give the run."""
        deployment = self.site.asked(f"/deployments/name/{name}")["id"]
        noon = dt.datetime.combine(DAY, dt.time(), dt.UTC) - dt.timedelta(hours=12)
        span = {"start_time": noon.isoformat(), "end_time": (noon + dt.timedelta(1)).isoformat(), "max_runs": 1}
        chosen = {"deployments": {"id": {"any_": [deployment]}}}

        def scheduled():
            self.site.asked(f"/deployments/{deployment}/schedule", span)
            runs = self.site.asked("/flow_runs/filter", chosen) or ()
            return [run["id"] for run in runs if run["auto_scheduled"]]

        (run,) = self.site.wait_for(scheduled, 60)
        return run

    def stopped(self, deployment, whole_group, *workloads):
        """Start a night, stop what runs it in the last workload's benchmark, and give what is left and how it ended."""
        number = len(self.site.states())
        for name in workloads:  # with other weights for each night
            (self.folder / f"{name}.toml").write_text(tiny(name, seed=number, int8=False))
        request = {"workloads": [str(self.folder / f"{name}.toml") for name in workloads], "profile": "quick"}
        run = self.site.start_run(f"nightly-quantization/{deployment}", {"request": request})
        stage = f"{workloads[-1]}: benchmark"
        self.site.wait_for(lambda: self.site.final(run) or self.site.has_begun(run, stage), 400)
        assert not self.site.final(run)
        worker = self.site.running.pop().process
        night = psutil.Process(worker.pid).children(recursive=True)
        assert night
        for pid in [worker.pid, *(process.pid for process in night if whole_group)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        code, left = worker.wait(120), psutil.wait_procs(night, timeout=30)[1]
        return code, left, *self.site.states()[number]


@pytest.fixture(scope="module")
def starts(migrated_home, tmp_path_factory):
    """A site with the ends of the runs that were started while this process locked the store, and of those stopped."""
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
            "served by hand": site.start_run("nightly-quantization/served", own),
            "deployed by schedule": starts.by_schedule("nightly-quantization/nightly"),
            "deployed by hand": site.start_run("nightly-quantization/nightly", own),
            "compaction": site.start_run("compact-results/compact-results", {}),
        }
        ends = {name: site.ended(run, 400) for name, run in runs.items()}
        starts.ends = {name: (run["name"], run["state"]["type"], run["state"]["message"]) for name, run in ends.items()}
    starts.dates = dates | {dt.datetime.now(HOST).date()}
    # SIGTERM to the worker and to `serve` alone, and to each of the worker's processes, as a service manager sends it.
    starts.stops = {
        "the worker": starts.stopped("nightly", False, "first"),
        "serve": starts.stopped("served", False, "first"),
    }
    site.start_worker(cwd=starts.folder)
    starts.stops["all of the worker"] = starts.stopped("nightly", True, "first", "second")
    starts.is_paused = site.asked("/deployments/name/nightly-quantization/served")["paused"]
    site.cut_power()
    return starts


@pytest.mark.parametrize(("way", "workloads"), [("served", "own"), ("deployed", "every workload")])
def test_a_schedule_starts_the_declared_run_for_the_date_in_its_own_zone_however_late(starts, way, workloads):
    name, state, message = starts.ends[f"{way} by schedule"]
    assert name == f"night {DAY}: {workloads}"
    assert state == "CANCELLED", message
    assert "run another (process " in message


@pytest.mark.parametrize("way", ["served", "deployed"])
def test_a_run_by_hand_has_its_own_parameters_and_the_hosts_date(starts, way):
    name, state, message = starts.ends[f"{way} by hand"]
    assert name in {f"night {date}: lstm-demo" for date in starts.dates}
    assert state == "CANCELLED", message
    assert "run another (process " in message


def test_the_compaction_runs_in_the_worker(starts):
    _, state, message = starts.ends["compaction"]
    assert state == "COMPLETED", message


@pytest.mark.parametrize("way", ["the worker", "serve", "all of the worker"])
def test_a_night_is_stopped_in_order_with_its_worker(starts, way):
    unmeasured = "second" if way == "all of the worker" else "first"
    assert starts.stops[way] == (0, [], "CANCELLED", f"stopped (TerminationSignal); not measured: {unmeasured}")
    assert not starts.is_paused


def test_stopped_nights_keep_their_measurements_and_lock_nothing(starts):
    runs = run_query(starts.site.store, "SELECT status FROM runs").to_pylist()
    assert runs == [{"status": "cancelled"}] * 3
    kept = run_query(starts.site.store, "SELECT DISTINCT workload FROM measurements").to_pylist()
    assert kept == [{"workload": "first"}]
    assert check(starts.site.store).problems == ()
