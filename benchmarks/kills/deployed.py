"""Nights of a deployment, killed: the flow's process, a stage worker, Prefect's worker, its server, or everything."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from benchmarks.kills.command import GONE_S, NIGHT_S, Kill, command_of, kill_processes
from benchmarks.kills.store import Files, require_each_row_once, require_whole
from tests.flows.site import FINAL, Site, postgresql

# What the server is told of a stage, and up to how many seconds later the kill comes.
MOMENTS = {
    "prepare data set": 1.0,
    "obtain checkpoint": 1.0,
    "build": 1.0,
    "evaluate": 1.0,
    "benchmark": 20.0,
}
TARGETS = ("flow", "stage worker", "worker", "server", "all")
_REQUEST = 'request={"workloads": ["lstm-demo"], "profile": "quick"}'


def kill_deployed(folder: Path, times: int, seed: int) -> Iterator[Kill]:
    """Kill one night after the other, then let one end; yield each kill once it is looked into.

    Raises
    ------
    RuntimeError
        Something was left behind, or is not whole.
    """
    chance, before = random.Random(seed), Files()
    with postgresql() as database:
        site = Site(folder, database)
        try:
            site.start()
            site.done("--no-prompt", "work-pool", "create", "nightquant", "--type", "nightquant", "--overwrite")
            site.done("--no-prompt", "deploy", "--name", "nightly", "--pool", "nightquant")
            for number in range(times):
                moment = chance.choice(list(MOMENTS))
                kill = Kill(TARGETS[number % len(TARGETS)], moment, chance.uniform(0.0, MOMENTS[moment]))
                _carry_out(site, kill, chance)
                before = require_whole(site.store, before, killed=True)
                yield kill
            run = _begun(site)
            _wait(site, run, lambda state: state in FINAL)
            if _state(site, run) != "COMPLETED":
                raise RuntimeError(f"The night after them is {_state(site, run)}: {site.states()[-1]}")
            require_whole(site.store, before, killed=False)
            require_each_row_once(site.store)
            if alive := [state for state, _ in site.states() if state not in FINAL]:
                raise RuntimeError(f"Nights that died are still {alive}.")
        finally:
            site.cut_power()


def _carry_out(site: Site, kill: Kill, chance: random.Random) -> None:
    run = _begun(site)
    _wait(site, run, lambda state: state in FINAL or _has_begun(site, run, kill.moment))
    time.sleep(kill.after_s)
    night = _processes(site)
    flow, others = night[:1], night[1:]
    if kill.target == "flow":
        kill_processes(flow)
    elif kill.target == "stage worker":
        workers = [each for each in others if "spawn_main" in " ".join(command_of(each))]
        kill_processes(chance.sample(workers, min(1, len(workers))))
    elif kill.target == "worker":
        kill_processes([psutil.Process(site.running[-1].process.pid)])
        site.running.pop().process.wait()
        site.start_worker()
    elif kill.target == "server":
        site.kill_server()
        site.start_server()
    else:
        site.cut_power()
        site.database.start()
        site.start()
    if kill.target in ("stage worker", "server"):
        _wait(site, run, lambda state: state in FINAL)
    # A night whose worker died alone may go on; it is no orphan while it works.
    limit_s = NIGHT_S if kill.target == "worker" else GONE_S
    for process in night:
        _end_of(process, limit_s)


def _begun(site: Site) -> str:
    before = {run["id"] for run in site.asked("/flow_runs/filter", {})}
    site.done("deployment", "run", "nightly-quantization/nightly", "--param", _REQUEST)
    (run,) = {run["id"] for run in site.asked("/flow_runs/filter", {})} - before
    return str(run)


def _state(site: Site, run: str) -> str:
    found = site.asked(f"/flow_runs/{run}")
    return str(found["state_type"]) if found else ""


def _has_begun(site: Site, run: str, stage: str) -> bool:
    logs = site.asked("/logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200}) or []
    return any(f": {stage}: started on" in log["message"] for log in logs)


def _wait(site: Site, run: str, is_over: Callable[[str], bool]) -> None:
    deadline = time.monotonic() + NIGHT_S
    while not is_over(state := _state(site, run)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"The night is still {state}.")
        time.sleep(0.2)


def _processes(site: Site) -> list[psutil.Process]:
    """The night's processes, the flow's own first."""
    worker = psutil.Process(site.running[-1].process.pid)
    return worker.children(recursive=True)


def _end_of(process: psutil.Process, limit_s: float) -> None:
    try:
        process.wait(limit_s)
    except psutil.TimeoutExpired as error:
        raise RuntimeError(f"Left {limit_s:.0f} s later: {' '.join(command_of(process))}") from error
    except psutil.NoSuchProcess:
        pass
