"""Task runners (threads, Dask, or a class that the settings name), and the hosts on which they run benchmarks.

Benchmarks run only on hosts with the configured fingerprint. The ``threads`` task runner uses only this host. On a Dask
cluster, nightquant asks each host for its fingerprint and selects the hosts for benchmarks. Workers therefore do not
need special options, and a new worker can replace a lost worker. A host's lock (`storage.locks`) allows only one
benchmark at a time across all runs.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar

from prefect.context import FlowRunContext
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.settings import Settings, load_settings
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


CLUSTERS = ("dask",)  # task runners that may use several hosts
CONFIGURED: AnyTaskRunner = _ConfiguredTaskRunner()


def make_task_runner(settings: Settings) -> AnyTaskRunner:
    """Create the configured task runner.

    Raises
    ------
    ConfigurationError
        The task runner cannot be imported.
    """
    if settings.task_runner == "threads":
        return ThreadPoolTaskRunner(max_workers=_WAITING_THREADS)
    try:
        return _dask(settings) if settings.task_runner == "dask" else resolve_name(settings.task_runner)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"The task runner {settings.task_runner!r} cannot be imported: {error}.",
            hint="Set it to `threads`, `dask` (pip install 'nightquant[dask]') or `module:Class`.",
        ) from error


def refuse_namesakes() -> None:
    """Raise `ConfigurationError` if the working folder contains a module that would shadow a nightquant package."""
    own_folder = Path(__file__).resolve().parents[2]
    for path in (Path(name) for package in ("flows", "tasks", "storage") for name in (f"{package}.py", package)):
        if path.resolve().parent != own_folder and (path.is_file() or (path / "__init__.py").is_file()):
            raise ConfigurationError(
                f"{path.absolute()} shadows nightquant's package {path.stem}, because Prefect searches the working "
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
    """Return a function that restricts tasks to the Dask cluster's hosts that may run benchmarks.

    On any task runner, the benchmark task itself checks its host's fingerprint.

    Raises
    ------
    MeasurementError
        No host of the cluster has the configured fingerprint.
    """
    run = FlowRunContext.get()
    if run is None or settings.task_runner not in CLUSTERS:
        return nullcontext
    hosts: dict[str, Host] = run.task_runner.client.run(this_host)  # type: ignore[attr-defined]
    workers = choose(((host, address) for address, host in hosts.items()), settings.fingerprint)
    # If other workers were allowed, idle workers on any host could steal the benchmark.
    return partial(resolve_name("dask:annotate"), workers=list(workers), allow_other_workers=False)


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


def _dask(settings: Settings) -> AnyTaskRunner:
    from dask import config
    from prefect_dask.task_runners import DaskTaskRunner

    if settings.dask_address:
        return DaskTaskRunner(address=settings.dask_address)
    # Without a timeout, tasks that are restricted to lost workers would wait forever.
    config.set({"distributed.scheduler.no-workers-timeout": "5 minutes"})
    # Local worker processes do not receive the command's options.
    inherited = {"NIGHTQUANT_WORKERS": str(settings.workers)}
    local = {"n_workers": settings.workers, "threads_per_worker": 1, "processes": True, "env": inherited}
    # By default, Dask's dashboard listens on all interfaces, and Dask warns if the default port is in use.
    return DaskTaskRunner(cluster_kwargs=local | {"dashboard_address": "127.0.0.1:0"})
