"""A night of a deployment is stopped with its worker: what was measured is recorded, and the next night runs."""

import contextlib
import os
import signal
from functools import partial

import psutil
import pytest

from storage.check import check
from storage.results.query import run_query
from tests.flows.site import FINAL

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(900)]
WORKLOADS = ("first", "second")
_WORKLOAD = """
schema_version = 1
name = "{name}"
description = "An LSTM"
domain = "sequence"
[data]
kind = "random-sequence"
[model]
kind = "lstm"
dimension = 64
[checkpoint]
kind = "seeded"
seed = {seed}
[[recipe]]
name = "float"
method = "none"
[[recipe]]
name = "int8"
method = "dynamic"
runtimes = ["torchscript"]
[benchmark]
baseline = "float/eager"
"""


def test_a_night_that_is_stopped_with_what_runs_it_keeps_what_it_measured_and_the_next_one_runs(site):
    site.done("--no-prompt", "work-pool", "create", "nightquant", "--type", "nightquant")
    site.done("--no-prompt", "deploy", "--name", "nightly", "--pool", "nightquant")
    # SIGTERM to `serve` and to the worker alone, and to each of the worker's processes, as a service manager sends it.
    ways = (
        ("served", site.start_serving, False, WORKLOADS[:1]),
        ("nightly", site.start_worker, False, WORKLOADS[:1]),
        ("nightly", site.start_worker, True, WORKLOADS),
    )
    for number, (deployment, start, whole_group, workloads) in enumerate(ways):
        start()
        _begin(site, deployment, number, workloads)
        site.wait_for(partial(_has_begun, site, number, f"{workloads[-1]}: benchmark"), 400)
        _stop(site, whole_group)
        assert site.states()[number] == ("CANCELLED", f"stopped (TerminationSignal); not measured: {workloads[-1]}")
    runs = run_query(site.store, "SELECT status FROM runs").to_pylist()
    assert runs == [{"status": "cancelled"}] * 3
    kept = run_query(site.store, "SELECT DISTINCT workload FROM measurements").to_pylist()
    assert kept == [{"workload": WORKLOADS[0]}]
    assert check(site.store).problems == ()
    assert not site.asked("/deployments/name/nightly-quantization/served")["paused"]


def _begin(site, deployment, number, workloads):
    """Ask for a night over workloads that are measured one after the other."""
    for name in WORKLOADS:  # with other weights for each night
        (site.folder / f"{name}.toml").write_text(_WORKLOAD.format(name=name, seed=number), encoding="utf-8")
    paths = ", ".join(f'"{site.folder / name}.toml"' for name in workloads)
    request = f'request={{"workloads": [{paths}], "profile": "quick"}}'
    site.done("deployment", "run", f"nightly-quantization/{deployment}", "--param", request)


def _has_begun(site, number, stage):
    run = sorted(site.asked("/flow_runs/filter", {}), key=lambda run: run["created"])[number]
    assert run["state_type"] not in FINAL, run["state"]
    logs = site.asked("/logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "limit": 200}) or []
    return any(f"{stage}: started on" in log["message"] for log in logs)


def _stop(site, whole_group):
    """Stop what runs the nights, and wait until it and all that it started are gone."""
    worker = site.running.pop().process
    night = psutil.Process(worker.pid).children(recursive=True)
    assert night
    for pid in [worker.pid, *(process.pid for process in night if whole_group)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    assert worker.wait(120) == 0
    assert psutil.wait_procs(night, timeout=30)[1] == []
