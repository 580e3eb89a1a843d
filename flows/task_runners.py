"""What fans the stages out: threads of this process, other processes, a Dask cluster or Ray."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Self

from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from flows.isolation import end_with_parent
from flows.settings import Settings
from storage.errors import ConfigurationError

# A task that waits for the one before it holds a thread; how many stages work at once is the worker processes' number.
_WAITING_THREADS = 256


def make_task_runner(settings: Settings) -> TaskRunner[Any]:
    """Make the task runner that the settings name.

    Raises
    ------
    ConfigurationError
        The extra that the runner needs is not installed.
    """
    return _RUNNERS[settings.task_runner](settings)


def _threads(settings: Settings) -> TaskRunner[Any]:
    return ThreadPoolTaskRunner(max_workers=_WAITING_THREADS)


def _processes(settings: Settings) -> TaskRunner[Any]:
    return _EndedProcesses(max_workers=settings.workers, initializer=end_with_parent)


class _EndedProcesses(ProcessPoolTaskRunner):
    """Ends its processes when the run is stopped; Prefect's waits for the stages that they are at."""

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if exc_type is not None:
            for process in multiprocessing.active_children():
                process.terminate()
        super().__exit__(exc_type, exc_value, traceback)


def _dask(settings: Settings) -> TaskRunner[Any]:
    try:
        from dask import config
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as error:
        raise ConfigurationError(
            "The task runner dask is not installed.", hint="Install it: pip install 'nightquant[dask]'."
        ) from error
    if settings.dask_address:
        return DaskTaskRunner(address=settings.dask_address)
    # A benchmark is pinned to its host's worker; without a limit it would wait for ever for one that is gone.
    config.set({"distributed.scheduler.no-workers-timeout": "5 minutes"})
    local = {"n_workers": settings.workers, "threads_per_worker": 1, "processes": True}
    # Left out, its web server would listen on all interfaces, or warn that the usual port is taken.
    return DaskTaskRunner(cluster_kwargs=local | {"dashboard_address": "127.0.0.1:0"})


def _ray(settings: Settings) -> TaskRunner[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from prefect_ray.task_runners import RayTaskRunner
    except ImportError as error:
        raise ConfigurationError(
            "The task runner ray is not installed.", hint="Install it: pip install 'nightquant[ray]'."
        ) from error
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
            super().__enter__()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
            return self

    runner: TaskRunner[Any] = InterruptibleRay(
        address=settings.ray_address or None, init_kwargs=None if settings.ray_address else local
    )
    return runner


_RUNNERS: dict[str, Callable[[Settings], TaskRunner[Any]]] = {
    "threads": _threads,
    "processes": _processes,
    "dask": _dask,
    "ray": _ray,
}
