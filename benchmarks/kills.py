"""Kill runs of a deployment at random moments of every stage.

    python -m benchmarks.kills [--times 50] [--seed 20261121]

A Prefect server on PostgreSQL and a worker run the nights. Each time SIGKILL goes to the flow's process alone, to one
of its stage workers, to Prefect's worker, to its server, or to everything at once. Prints one line per kill, and ends
with an error at the first thing that is wrong: a process that is left 10 s later, a store that is not whole, an
artifact that has changed, a last night that does not complete, or a row that is there twice.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from storage.check import check
from storage.results.catalog import CATALOG
from storage.results.query import run_query
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
GONE_S = 10.0
NIGHT_S = 600.0
NIGHT = "nightly-quantization/nightly", {"request": {"workloads": ["lstm-demo"], "profile": "quick"}}
# Of every artifact's files: inode and time of change.
Files = dict[str, tuple[int, int]]
_KEYS = "run_id, workload, recipe, runtime, setting, threads, batch_size"


@dataclass(frozen=True)
class Kill:
    """Where a night was killed, and what was."""

    target: str
    moment: str
    after_s: float


def kill_deployed(folder: Path, times: int, seed: int) -> Iterator[Kill]:
    """Kill one night after the other, then let one end; yield each kill once it is looked into.

    Raises
    ------
    RuntimeError or AssertionError
        Something was left behind, is not whole, or does not end.
    """
    chance, before = random.Random(seed), Files()
    with postgresql() as database:
        site = Site(folder, database)
        try:
            site.start_server()
            site.done("--no-prompt", "work-pool", "create", "nightquant", "--type", "nightquant", "--overwrite")
            site.done("--no-prompt", "deploy", "--name", "nightly", "--pool", "nightquant")
            site.start_worker()
            for number in range(times):
                moment = chance.choice(list(MOMENTS))
                kill = Kill(TARGETS[number % len(TARGETS)], moment, chance.uniform(0.0, MOMENTS[moment]))
                _carry_out(site, kill, chance)
                before = require_whole(site.store, before, killed=True)
                yield kill
            last = site.ended(site.start_run(*NIGHT), NIGHT_S)["state"]
            if last["type"] != "COMPLETED":
                raise RuntimeError(f"The night after them is {last['type']}: {last['message']}")
            require_whole(site.store, before, killed=False)
            require_each_row_once(site.store)
            if alive := [state for state, _ in site.states() if state not in FINAL]:
                raise RuntimeError(f"Nights that died are still {alive}.")
        finally:
            site.cut_power()


def _carry_out(site: Site, kill: Kill, chance: random.Random) -> None:
    run = site.start_run(*NIGHT)
    site.wait_for(lambda: site.final(run) or site.has_begun(run, kill.moment), NIGHT_S)
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
        site.start_server()
        site.start_worker()
    if kill.target in ("stage worker", "server"):
        site.ended(run, NIGHT_S)
    # A night whose worker died alone may go on; it is no orphan while it works.
    limit_s = NIGHT_S if kill.target == "worker" else GONE_S
    if left := psutil.wait_procs(night, limit_s)[1]:
        raise RuntimeError(f"Left {limit_s:.0f} s later: {[' '.join(command_of(process)) for process in left]}")


def _processes(site: Site) -> list[psutil.Process]:
    """The night's processes, the flow's own first."""
    worker = psutil.Process(site.running[-1].process.pid)
    return worker.children(recursive=True)


def command_of(process: psutil.Process) -> list[str]:
    """The command line, [] of a process that is gone."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def kill_processes(processes: list[psutil.Process]) -> None:
    """SIGKILL to each that is alive."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def require_whole(store: Path, before: Files, *, killed: bool) -> Files:
    """Give each file of each finished artifact; `RuntimeError` where one has changed or the store is not whole."""
    # A night that is killed between a file of results and the catalog leaves the catalog of the one before it.
    problems = [each for each in check(store).problems if not (killed and each.where == CATALOG)]
    files = (path for path in (store / "artifacts").glob("*/[0-9a-f][0-9a-f]/*/**/*") if path.is_file())
    after = {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}
    if problems or not before.items() <= after.items():
        raise RuntimeError(f"The store is not whole: {problems or 'an artifact has changed'}")
    return after


def require_each_row_once(store: Path) -> None:
    """`RuntimeError` where a measurement is there twice."""
    if run_query(store, f"SELECT {_KEYS} FROM measurements GROUP BY ALL HAVING count(*) > 1").num_rows:
        raise RuntimeError("A row is there twice.")


def main() -> None:
    """Print one line per kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50, help="nights to kill")
    parser.add_argument("--seed", type=int, default=20261121, help="of the moments")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        for kill in kill_deployed(Path(folder), arguments.times, arguments.seed):
            print(f"{kill.target:14} {kill.after_s:5.1f} s after {kill.moment}", flush=True)
    print(f"{arguments.times} kills in {time.monotonic() - began:.0f} s: nothing left, store whole, no row twice.")


if __name__ == "__main__":
    main()
