"""Task runners (threads, Dask, or a class that the settings name), and the hosts on which they run benchmarks."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pkgutil import resolve_name
from typing import Any

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
Host = tuple[str, str]  # name and fingerprint


class _ConfiguredTaskRunner(ThreadPoolTaskRunner[object]):
    """Placeholder that creates the configured task runner when a run starts, not on import."""

    def duplicate(self) -> AnyTaskRunner:  # type: ignore[override]  # Prefect itself needs only a context manager
        """Create the configured task runner."""
        return make_task_runner(load_settings())


CLUSTERS = ("dask",)  # task runners that may use several hosts
CONFIGURED: AnyTaskRunner = _ConfiguredTaskRunner()


def make_task_runner(settings: Settings) -> AnyTaskRunner:
    """Create the configured task runner."""
    if settings.task_runner == "threads":
        return ThreadPoolTaskRunner(max_workers=_WAITING_THREADS)
    try:
        return _dask(settings) if settings.task_runner == "dask" else resolve_name(settings.task_runner)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"The task runner {settings.task_runner!r} cannot be imported: {error}.",
            hint="Set it to `threads`, `dask` (pip install 'nightquant[dask]') or `module:Class`.",
        ) from error


def this_host() -> Host:
    """Return the name and the fingerprint of the host that this process runs on."""
    return platform.node(), fingerprint()


def require_fingerprint(wanted: str) -> None:
    """Raise `MeasurementError` if `wanted` is set and differs from this host's fingerprint."""
    if wanted:
        choose({"": this_host()}, wanted)


def place_benchmarks(settings: Settings) -> Pin:
    """Return a function that restricts tasks to the Dask cluster's hosts that may run benchmarks."""
    run = FlowRunContext.get()
    if run is None or settings.task_runner not in CLUSTERS:
        return nullcontext
    workers = choose(run.task_runner.client.run(this_host), settings.fingerprint)  # type: ignore[attr-defined]
    # If other workers were allowed, idle workers on any host could steal the benchmark.
    return partial(resolve_name("dask:annotate"), workers=workers, allow_other_workers=False)


def choose(hosts: Mapping[str, Host], wanted: str) -> list[str]:
    """Return the addresses of the hosts that have the fingerprint `wanted`; if it is ``""``, every host matches."""
    if chosen := [address for address, (_, found) in hosts.items() if wanted in ("", found)]:
        return chosen
    names = sorted({f"{name} ({found})" for name, found in hosts.values()})
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
