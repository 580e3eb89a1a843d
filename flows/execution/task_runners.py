"""Task runners (threads, Dask or Ray), and the hosts on which they run benchmarks.

Benchmarks run only on hosts with the configured fingerprint. The ``threads`` task runner uses only this host. On a Dask
or Ray cluster, nightquant asks each host for its fingerprint and selects the hosts for benchmarks. Workers therefore do
not need special options, and a new worker can replace a lost worker. A host's lock (`storage.locks`) allows only one
benchmark at a time across all runs.
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

# Allow many threads, because each task that waits for inputs occupies a thread. The `workers` setting limits the
# number of stages that run at once.
_WAITING_THREADS = 256

AnyTaskRunner = TaskRunner[Any]  # each future has the result type of its stage
Pin = Callable[[], AbstractContextManager[None]]  # tasks in the block run only on hosts that may run benchmarks
Spot = TypeVar("Spot")


@dataclass(frozen=True)
class Host:
    """A host and its fingerprint."""

    name: str
    fingerprint: str


class _ConfiguredTaskRunner(ThreadPoolTaskRunner[object]):
    """Placeholder that creates the configured task runner when a run starts, so that settings are not read on import.

    For each run, Prefect duplicates the flow's task runner.
    """

    def duplicate(self) -> AnyTaskRunner:  # type: ignore[override]  # Prefect itself needs only a context manager
        """Create the configured task runner."""
        return make_task_runner(load_settings())


CLUSTERS = ("dask", "ray")  # task runners that may use several hosts
CONFIGURED: AnyTaskRunner = _ConfiguredTaskRunner()


def make_task_runner(settings: Settings) -> AnyTaskRunner:
    """Create the configured task runner.

    Raises
    ------
    ConfigurationError
        The package extra for the task runner is not installed.
    """
    if settings.task_runner == "threads":
        return ThreadPoolTaskRunner(max_workers=_WAITING_THREADS)
    try:
        return _dask(settings) if settings.task_runner == "dask" else _ray(settings)
    except ImportError as error:
        raise ConfigurationError(
            f"The {settings.task_runner} task runner is not installed.",
            hint=f"Run: pip install 'nightquant[{settings.task_runner}]'",
        ) from error


def refuse_namesakes(starter: str) -> None:
    """Raise `ConfigurationError` if the working folder contains a module that would shadow a nightquant package."""
    own_folder = Path(__file__).resolve().parents[2]
    for path in (Path(name) for package in ("flows", "tasks", "storage") for name in (f"{package}.py", package)):
        if path.resolve().parent != own_folder and (path.is_file() or (path / "__init__.py").is_file()):
            raise ConfigurationError(
                f"{path.absolute()} shadows nightquant's package {path.stem}, because {starter} searches the working "
                "directory first.",
                hint=f"Run nightquant in another directory, or rename {path.name}.",
            )


def this_host() -> Host:
    """Describe the host that this process runs on."""
    return Host(platform.node(), fingerprint())


def require_fingerprint(wanted: str) -> None:
    """Raise `MeasurementError` if `wanted` is set and differs from this host's fingerprint."""
    if wanted:
        choose([(this_host(), None)], wanted)


def place_benchmarks(settings: Settings) -> Pin:
    """Return a function that restricts tasks to the cluster's hosts that may run benchmarks.

    If the task runner is ``threads``, the benchmark task itself checks the host's fingerprint.

    Raises
    ------
    MeasurementError
        No host of the cluster has the configured fingerprint.
    """
    run = FlowRunContext.get()
    if run is None or settings.task_runner not in CLUSTERS:
        return nullcontext
    if settings.task_runner == "dask":
        hosts: dict[str, Host] = run.task_runner.client.run(this_host)  # type: ignore[attr-defined]
        workers = choose(((host, address) for address, host in hosts.items()), settings.fingerprint)
        # If other workers were allowed, idle workers on any host could steal the benchmark.
        return partial(resolve_name("dask:annotate"), workers=list(workers), allow_other_workers=False)
    nodes = choose(_ray_nodes(), settings.fingerprint)
    # Reserve all of a node's processors, so that Ray does not start other tasks during a benchmark.
    processors = min(node.processors for node in nodes)
    pin = resolve_name("prefect_ray.context:remote_options")
    return partial(pin, num_cpus=processors, label_selector=_one_of(*nodes))


def choose(hosts: Iterable[tuple[Host, Spot]], wanted: str) -> tuple[Spot, ...]:
    """Return the `Spot` of each host that has the fingerprint `wanted`; if `wanted` is ``""``, every host matches.

    Raises
    ------
    MeasurementError
        No host has the fingerprint `wanted`.
    """
    hosts = list(hosts)
    if chosen := tuple(spot for host, spot in hosts if wanted in ("", host.fingerprint)):
        return chosen
    names = sorted({f"{host.name} ({host.fingerprint})" for host, _ in hosts})
    lacking = f"has the fingerprint {wanted}" if wanted else "is available"
    raise MeasurementError(
        f"Benchmarks cannot run, because no host {lacking}. Available hosts: {', '.join(names) or 'none'}.",
        hint="Run a worker on a matching host, or clear NIGHTQUANT_FINGERPRINT to allow any host.",
    )


def _inherited(settings: Settings) -> dict[str, str]:
    """Return environment variables for local worker processes, which do not receive the command's options."""
    return {"NIGHTQUANT_WORKERS": str(settings.workers)}


def _dask(settings: Settings) -> AnyTaskRunner:
    from dask import config
    from prefect_dask.task_runners import DaskTaskRunner

    if settings.dask_address:
        return DaskTaskRunner(address=settings.dask_address)
    # Without a timeout, tasks that are restricted to lost workers would wait forever.
    config.set({"distributed.scheduler.no-workers-timeout": "5 minutes"})
    local = {"n_workers": settings.workers, "threads_per_worker": 1, "processes": True, "env": _inherited(settings)}
    # By default, Dask's dashboard listens on all interfaces, and Dask warns if the default port is in use.
    return DaskTaskRunner(cluster_kwargs=local | {"dashboard_address": "127.0.0.1:0"})


def _ray(settings: Settings) -> AnyTaskRunner:
    refuse_namesakes("Ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from prefect_ray.task_runners import RayTaskRunner

    local = {
        "num_cpus": settings.workers,
        "include_dashboard": False,
        "logging_level": logging.WARNING,
        "log_to_driver": False,  # only the reporter writes to the terminal; Prefect's log contains the stages' messages
        # By default, Ray runs workers at nice 15, so that other programs slow down benchmarks and may starve builds.
        "_system_config": {"worker_niceness": 0},
    }

    class InterruptibleRay(RayTaskRunner):  # type: ignore[misc]  # the module lacks type hints
        """Ray task runner that leaves SIGTERM to Prefect, because Ray's handler aborts the process."""

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

    nodes = [
        _RayNode(node["NodeID"], node["Resources"]["CPU"])
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        # Skip nodes without processors, such as head nodes.
        if node["Alive"] and node["Resources"].get("CPU")
    ]
    probe = ray.remote(this_host)
    answers = [(probe.options(num_cpus=0, label_selector=_one_of(node)).remote(), node) for node in nodes]
    hosts = []
    for answer, node in answers:
        # Ray reports a node as alive until the node has missed heartbeats for half a minute.
        with suppress(ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
            hosts.append((ray.get(answer), node))
    return hosts


def _one_of(*nodes: _RayNode) -> dict[str, str]:
    return {"ray.io/node-id": f"in({','.join(node.identity for node in nodes)})"}
