"""What fans the stages out: threads of this process, a Dask cluster or Ray; and where they benchmark.

Benchmarks run only on hosts of the wanted fingerprint. Threads have one host, this one. A Dask cluster or Ray is asked
for its hosts, and benchmarks are restricted to all of those that fit. So nothing has to be declared when a worker is
started, and another worker can replace one that is lost. The host's lock (`storage.locks`) lets only one benchmark run
on a host at a time, whichever run it belongs to.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Self, TypeVar

from prefect.context import FlowRunContext
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.settings import Settings, children_inherit, load_settings
from storage.errors import ConfigurationError, MeasurementError
from tasks.machine import fingerprint

# A task that waits for the one before it holds a thread; the number of workers limits how many stages run at once.
_WAITING_THREADS = 256

AnyTaskRunner = TaskRunner[Any]  # its futures hold whatever the stages return
Pin = Callable[[], AbstractContextManager[None]]  # what is submitted in its block runs on hosts that fit
Spot = TypeVar("Spot")


@dataclass(frozen=True)
class Host:
    """A host, and the fingerprint of its processor."""

    name: str
    fingerprint: str


class _ConfiguredTaskRunner(ThreadPoolTaskRunner[object]):
    """Stands for the task runner of the settings, which are read when a run starts and not when the flow is imported.

    Prefect starts each run with a duplicate of its flow's task runner.
    """

    def duplicate(self) -> AnyTaskRunner:  # type: ignore[override]  # Prefect itself asks for a context manager only
        """Make the task runner that the settings name."""
        return make_task_runner(load_settings())


CLUSTERS = ("dask", "ray")  # runners whose hosts may be several
CONFIGURED: AnyTaskRunner = _ConfiguredTaskRunner()


def make_task_runner(settings: Settings) -> AnyTaskRunner:
    """Make the task runner that the settings name.

    Raises
    ------
    ConfigurationError
        The extra that the runner needs is not installed.
    """
    if settings.task_runner == "threads":
        return ThreadPoolTaskRunner(max_workers=_WAITING_THREADS)
    try:
        return _dask(settings) if settings.task_runner == "dask" else _ray(settings)
    except ImportError as error:
        raise ConfigurationError(
            f"The task runner {settings.task_runner} is not installed.",
            hint=f"Install it: pip install 'nightquant[{settings.task_runner}]'.",
        ) from error


def refuse_namesakes(who: str) -> None:
    """Refuse, with a `ConfigurationError`, processes that would import the working folder's modules for ours."""
    ours = Path(__file__).resolve().parents[2]
    for path in (Path(name) for package in ("flows", "tasks", "storage") for name in (f"{package}.py", package)):
        if path.resolve().parent != ours and (path.is_file() or (path / "__init__.py").is_file()):
            raise ConfigurationError(
                f"{who} puts the working folder first on Python's path: {path.absolute()} hides a part of nightquant.",
                hint="Run from another folder, or rename it.",
            )


def this_host() -> Host:
    """Describe the host that this process runs on."""
    return Host(platform.node(), fingerprint())


def require_fingerprint(wanted: str) -> None:
    """Refuse, with a `MeasurementError`, to benchmark on a host of another fingerprint than is wanted; "" is any."""
    if wanted:
        choose([(this_host(), None)], wanted)


def place_benchmarks(settings: Settings) -> Pin:
    """Find the hosts of this flow run's cluster that benchmarks may run on; return what pins them there.

    Threads have one host, and the task itself refuses one that does not fit.

    Raises
    ------
    MeasurementError
        No host of the cluster has the wanted fingerprint.
    """
    run = FlowRunContext.get()
    if run is None or settings.task_runner not in CLUSTERS:
        return nullcontext
    if settings.task_runner == "dask":
        found: dict[str, Host] = run.task_runner.client.run(this_host)  # type: ignore[attr-defined]
        workers = choose(((host, address) for address, host in found.items()), settings.fingerprint)
        # "Other workers allowed" would let idle ones steal it, whatever their host.
        return partial(resolve_name("dask:annotate"), workers=list(workers), allow_other_workers=False)
    nodes = choose(_ray_nodes(), settings.fingerprint)
    # All of a node's processors: Ray then starts nothing beside it.
    processors = min(node.processors for node in nodes)
    pin = resolve_name("prefect_ray.context:remote_options")
    return partial(pin, num_cpus=processors, label_selector=_one_of(*nodes))


def choose(hosts: Iterable[tuple[Host, Spot]], wanted: str) -> tuple[Spot, ...]:
    """Choose every spot on a host that has the wanted fingerprint ("": any); `MeasurementError` if there is none."""
    hosts = list(hosts)
    if fitting := tuple(spot for host, spot in hosts if wanted in ("", host.fingerprint)):
        return fitting
    found = ", ".join(sorted({f"{host.name} has {host.fingerprint}" for host, _ in hosts})) or "there is no host"
    raise MeasurementError(
        f"Benchmarks are wanted on hosts of fingerprint {wanted or '(any)'}; {found}.",
        hint="Run a worker on such a host, or change NIGHTQUANT_FINGERPRINT (empty: any host).",
    )


def _inherited(settings: Settings) -> dict[str, str]:
    """Return what local worker processes must be told about the settings: a flag is in nobody's environment."""
    return {"NIGHTQUANT_WORKERS": str(settings.workers)}


def _dask(settings: Settings) -> AnyTaskRunner:
    from dask import config
    from prefect_dask.task_runners import DaskTaskRunner

    if settings.dask_address:
        return DaskTaskRunner(address=settings.dask_address)
    # Without a limit, what only lost workers may run would wait for them for ever.
    config.set({"distributed.scheduler.no-workers-timeout": "5 minutes"})
    local = {"n_workers": settings.workers, "threads_per_worker": 1, "processes": True, "env": _inherited(settings)}
    # By default, its web server would listen on all interfaces, or warn that the usual port is taken.
    return DaskTaskRunner(cluster_kwargs=local | {"dashboard_address": "127.0.0.1:0"})


def _ray(settings: Settings) -> AnyTaskRunner:
    refuse_namesakes("Ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from prefect_ray.task_runners import RayTaskRunner

    local = {
        "num_cpus": settings.workers,
        "include_dashboard": False,
        "logging_level": logging.WARNING,
        "log_to_driver": False,  # the terminal is the reporter's; Prefect's run log has what the stages said
    }

    class InterruptibleRay(RayTaskRunner):  # type: ignore[misc]  # its module has no types
        """Leaves SIGTERM to Prefect: Ray's own handler aborts the process."""

        def __enter__(self) -> Self:
            handler = signal.getsignal(signal.SIGTERM)
            with children_inherit(NIGHTQUANT_SIGNING_KEY=None, **_inherited(settings)):
                super().__enter__()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
            return self

    runner: AnyTaskRunner = InterruptibleRay(
        address=settings.ray_address or None, init_kwargs=None if settings.ray_address else local
    )
    return runner


@dataclass(frozen=True)
class _RayNode:
    identity: str
    processors: float


def _ray_nodes() -> list[tuple[Host, _RayNode]]:
    import ray

    found = [
        _RayNode(node["NodeID"], node["Resources"]["CPU"])
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        # One without processors, a cluster's head for instance, gets no work.
        if node["Alive"] and node["Resources"].get("CPU")
    ]
    probe = ray.remote(this_host)
    asked = [(probe.options(num_cpus=0, label_selector=_one_of(node)).remote(), node) for node in found]
    hosts = []
    for answer, node in asked:
        # Ray calls a node alive until it has missed heartbeats for half a minute.
        with suppress(ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
            hosts.append((ray.get(answer), node))
    return hosts


def _one_of(*nodes: _RayNode) -> dict[str, str]:
    return {"ray.io/node-id": f"in({','.join(node.identity for node in nodes)})"}
