"""Kill one of two machines in the middle of a night: ``python -m benchmarks.machines [workers] [dask]``.

Both are network namespaces of this host with addresses and names of their own; Prefect's server is on PostgreSQL
and the store on moto's S3 server. The machine that is at a stage loses all of its processes at once (SIGKILL):

workers
    Each machine has a Prefect worker. The next night runs on the other one, once the dead night's lease is over.
dask
    The night's stages run on a cluster of both machines. The night goes on with the other one.

For each night: whether it completed, that no artifact was lost or made twice and no row is there twice, which machines
measured, and that the store is whole. The exit code is 1 where one of these does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3

from benchmarks.kills.store import rows_twice
from benchmarks.machines.network import ADDRESS, Machine, Network
from storage.check import check
from storage.results.query import run_query
from storage.root import set_cache_folder
from tests.flows.processes import Command
from tests.flows.site import FINAL, Site, postgresql
from tests.storage.s3_server import credentials, s3_server

_WORKLOAD, _BUCKET = "lstm-demo", "nights"
_REQUEST = f'request={{"workloads": ["{_WORKLOAD}"], "profile": "quick"}}'
_NAMES = ("machine-a", "machine-b")
_NIGHT_S = 900.0
# A stage that makes something, and the one that times it.
_STAGES = ("build", "benchmark")
_AT = re.compile(r".*: ([a-z ]+): started on (\S+), process \d+")


class Ground:
    """What all machines reach: a server, a bucket, and the two machines."""

    def __init__(self, site: Site, network: Network, store: str) -> None:
        self.site, self.network, self.store = site, network, store
        for machine in network.machines:
            machine.variables = site.variables | {"NIGHTQUANT_STORE": store} | machine.variables

    def machine(self, name: str) -> Machine:
        """The machine of a name."""
        return next(machine for machine in self.network.machines if machine.name == name)

    def stages(self) -> list[tuple[str, str]]:
        """Stage and machine of every start that the server has been told, in order."""
        logs = self.site.asked("/logs/filter", {"sort": "TIMESTAMP_ASC", "limit": 200}) or []
        return [found.groups() for log in logs if (found := _AT.fullmatch(log["message"]))]

    def wait_for_stage(self, stage: str, is_over: Callable[[], bool]) -> Machine:
        """Wait until a machine is at a stage; `RuntimeError` where the night has ended before."""
        while True:
            for each, host in self.stages():
                if each == stage:
                    return self.machine(host)
            if is_over():
                raise RuntimeError(f"The night has ended before the stage {stage}: {self.stages()}")
            time.sleep(0.2)

    def artifacts(self) -> dict[str, str]:
        """Every artifact that is whole, and when it was: its manifest is put last."""
        pages = (
            boto3.client("s3")
            .get_paginator("list_objects_v2")
            .paginate(Bucket=_BUCKET, Prefix=self.store.partition(f"{_BUCKET}/")[2])
        )
        entries = [entry for page in pages for entry in page.get("Contents", ())]
        return {each["Key"]: str(each["LastModified"]) for each in entries if each["Key"].endswith("/artifact.json")}

    def judge(self, name: str, before: dict[str, str], killed: Machine) -> bool:
        """Print what became of the store, and whether all is as it must be."""
        problems = check(self.store).problems
        twice = rows_twice(self.store)
        told = "SELECT host, measurements.status, error FROM measurements JOIN runs USING (run_id)"
        rows = run_query(self.store, told).to_pylist()
        after = self.artifacts()
        lost = sum(after.get(key) != when for key, when in before.items())
        measured = sorted({row["host"] for row in rows if row["status"] in ("ok", "inconclusive")})
        failed = [row["error"] for row in rows if row["status"] not in ("ok", "inconclusive")]
        print(
            f"{name:<26} {killed.name} killed: {len(rows)} rows, {len(failed)} failed, {twice} twice; measured on "
            f"{', '.join(measured) or 'none'}; of {len(before)} artifacts {lost} lost or made again; "
            f"{len(problems)} problems in the store",
            *(f"  {text}" for text in [*map(str, problems), *dict.fromkeys(failed)]),
            sep="\n",
            flush=True,
        )
        return bool(rows) and not (problems or twice or failed or lost) and killed.name not in measured


@contextmanager
def _ground(scratch: Path) -> Iterator[Ground]:
    """Start everything anew, for one night."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    with Network(folder, _NAMES) as network, s3_server(ADDRESS) as endpoint, postgresql() as database:
        os.environ.update(credentials(endpoint))
        set_cache_folder(str(folder / "cache"))
        boto3.client("s3").create_bucket(Bucket=_BUCKET)
        site = Site(folder, database, ADDRESS)
        site.variables["NIGHTQUANT_CACHE"] = str(folder / "cache")
        try:
            site.start_server()
            yield Ground(site, network, f"s3://{_BUCKET}/{folder.name}")
        finally:
            for machine in network.machines:
                machine.die()
            for command in site.running:
                command.kill()


def workers(scratch: Path, stage: str) -> bool:
    """Two Prefect workers, the one at work killed: the other takes the next night."""
    with _ground(scratch) as ground:
        site = ground.site
        site.done("--no-prompt", "work-pool", "create", "nightquant", "--type", "nightquant", "--overwrite")
        site.done("--no-prompt", "deploy", "--name", "nightly", "--pool", "nightquant")
        for machine in ground.network.machines:
            machine.start("-m", "prefect", "worker", "start", "--pool", "nightquant", "--type", "nightquant")
        begin = ("deployment", "run", "nightly-quantization/nightly", "--param", _REQUEST)
        site.done(*begin)
        killed = ground.wait_for_stage(stage, lambda: _state(site, 0) in FINAL)
        before = ground.artifacts()
        killed.die()
        began, nights = time.monotonic(), 1
        while True:
            site.done(*begin)
            state = _ended(site, nights)
            if state != "CANCELLED":
                break
            nights += 1
            time.sleep(15)
        refused = nights - 1
        print(
            f"  {refused} nights were refused while the dead one's lease stood; the next one began "
            f"{time.monotonic() - began:.0f} s or less after the kill and is {state}; the dead one is {_state(site, 0)}"
        )
        return ground.judge(f"workers, at {stage}", before, killed) & (state == "COMPLETED")


def _state(site: Site, number: int) -> str:
    return str(site.states()[number][0])


def _ended(site: Site, number: int) -> str:
    deadline = time.monotonic() + _NIGHT_S
    while (state := _state(site, number)) not in FINAL:
        if time.monotonic() > deadline:
            raise RuntimeError(f"The night has not ended: {site.states()}")
        time.sleep(1)
    return state


def dask(scratch: Path, stage: str) -> bool:
    """A Dask worker on each machine, the one at work killed."""
    with _ground(scratch) as ground:
        file = ground.site.folder / "scheduler.json"
        ground.site.running.append(
            ground.site.command(
                *("--scheduler-file", str(file), "--no-dashboard", "--host", ADDRESS, "--port", "0"),
                program=(sys.executable, "-m", "distributed.cli.dask_scheduler"),
                log=ground.site.folder / "dask.log",
            )
        )
        address = ground.site.wait_for(lambda: file.is_file() and json.loads(file.read_text())["address"], 120)
        for machine in ground.network.machines:
            settled = ("--nworkers", "1", "--nthreads", "1", "--no-dashboard", "--host", machine.address)
            machine.start("-m", "distributed.cli.dask_worker", address, *settled)
        return _on_cluster(ground, "dask", stage, NIGHTQUANT_DASK_ADDRESS=address)


def _on_cluster(ground: Ground, runner: str, stage: str, **variables: str) -> bool:
    arguments = ("nightly", "--workload", _WORKLOAD, "--profile", "quick", "--task-runner", runner)
    log = ground.site.folder / "night.log"
    night = Command(
        *(*arguments, "--store", ground.store),
        home=ground.site.folder / "prefect",
        cwd=ground.site.folder,
        log=log,
        **ground.site.variables | variables,
    )
    ground.site.running.append(night)
    killed = ground.wait_for_stage(stage, lambda: night.process.poll() is not None)
    before = ground.artifacts()
    killed.die()
    began = time.monotonic()
    code = night.process.wait(_NIGHT_S)
    print(f"  the night ended with {code}, {time.monotonic() - began:.0f} s after the kill")
    is_good = ground.judge(f"{runner}, at {stage}", before, killed)
    if code:
        print(log.read_text())
    return is_good and code == 0


KINDS = {"workers": workers, "dask": dask}


def main() -> None:
    """Do it for every kind and stage."""
    parser = argparse.ArgumentParser(description="Kill one of two machines in the middle of a night.")
    parser.add_argument("kinds", nargs="*", default=[*KINDS], help=f"of {', '.join(KINDS)}")
    parser.add_argument("--stage", choices=_STAGES, help="one stage alone")
    arguments = parser.parse_args()
    is_good = True
    with tempfile.TemporaryDirectory(prefix="nq-", ignore_cleanup_errors=True) as scratch:
        for kind in arguments.kinds:
            for stage in [arguments.stage] if arguments.stage else _STAGES:
                is_good &= KINDS[kind](Path(scratch), stage)
    raise SystemExit(0 if is_good else 1)


if __name__ == "__main__":
    main()
