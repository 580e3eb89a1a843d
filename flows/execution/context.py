"""Execution of a run's stages: the task runner, the workers, and the reporter."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from multiprocessing.util import Finalize
from pkgutil import resolve_name
from typing import Any, TypeVar, TypeVarTuple

from prefect import Flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.execution.workers import STARTED, Workers, threads_each
from flows.reporter import Reporter
from flows.settings import Settings, load_settings, without_signing_key
from storage.errors import ConfigurationError, backoff_s
from storage.root import set_cache_folder
from tasks.environment.machine import fingerprint
from tasks.values.job import Progress, Workspace
from tasks.values.refs import Frozen

R = TypeVar("R")
Ts = TypeVarTuple("Ts")
AnyTaskRunner = TaskRunner[Any]  # each future has the result type of its stage
# Allow many threads, because each task that waits for inputs occupies a thread. The `workers` setting limits the
# number of stages that run at once.
_WAITING_THREADS = 256
INVOCATION: ContextVar[tuple[Settings, Reporter]] = ContextVar("nightquant_invocation")


def current_invocation() -> tuple[Settings, Reporter]:
    """Return the command's settings and reporter or, in a deployment, this process's settings."""
    return INVOCATION.get(None) or (load_settings(), Reporter())


def run_flow(flow: Flow[..., Any], request: Frozen, settings: Settings, reporter: Reporter) -> State[Any]:
    """Run a flow in this process, and report progress to `reporter`."""
    INVOCATION.set((settings, reporter))
    configured: Callable[..., State[Any]] = flow.with_options(task_runner=make_task_runner(settings))
    return configured(request, return_state=True)


class _ConfiguredTaskRunner(ThreadPoolTaskRunner[object]):
    """Placeholder that creates the configured task runner when a run starts, not on import."""

    def duplicate(self) -> AnyTaskRunner:  # type: ignore[override]  # Prefect itself needs only a context manager
        return make_task_runner(load_settings())


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


def _dask(settings: Settings) -> AnyTaskRunner:
    from prefect_dask.task_runners import DaskTaskRunner

    if settings.dask_address:
        return DaskTaskRunner(address=settings.dask_address)
    # Local worker processes do not receive the command's options.
    inherited = {"NIGHTQUANT_WORKERS": str(settings.workers)}
    local = {"n_workers": settings.workers, "threads_per_worker": 1, "processes": True, "env": inherited}
    # By default, Dask's dashboard listens on all interfaces, and Dask warns if the default port is in use.
    return DaskTaskRunner(cluster_kwargs=local | {"dashboard_address": "127.0.0.1:0"})


def place_benchmarks(settings: Settings) -> AbstractContextManager[None]:
    """Restrict the tasks that the block submits to the Dask workers that have the configured fingerprint."""
    run = FlowRunContext.get()
    if run is None or settings.task_runner != "dask" or not settings.fingerprint:
        return nullcontext()
    from dask.base import annotate

    found: dict[str, str] = run.task_runner.client.run(fingerprint)  # type: ignore[attr-defined]
    workers = [address for address, own in found.items() if own == settings.fingerprint]
    # If other workers were allowed, idle workers on any host could steal the benchmark.
    return annotate(workers=workers, allow_other_workers=False) if workers else nullcontext()


class Execution:
    """Executor that runs stages in worker processes or in this process, and reports the stages' progress."""

    def __init__(self, settings: Settings, reporter: Reporter, workers: int | None = None) -> None:
        set_cache_folder(settings.cache)
        self.settings, self.reporter = settings, reporter
        count, threads = workers or settings.workers, threads_each(settings.workers)
        self.workers = Workers(count, threads, settings.cache, listener=self._receive)
        self._awaited: dict[str, bool] = {}  # whether a stage has begun, keyed by label
        # One thread reports a stage's progress and another thread reports its end; the lock keeps the reports in order.
        self._order = threading.Lock()

    def run(
        self, stage: Callable[[Workspace, *Ts], R], label: str, timeout_s: float | None, store: str, *args: *Ts
    ) -> R:
        """Run a stage in a worker and report its progress; see `Workers.run`."""
        with self._reported(label) as own:
            return self.workers.run(stage, own, timeout_s, store, *args)

    def pause(self, label: str, attempt: int) -> bool:
        """Wait before retrying a stage, and increase the wait with each attempt; return False if the run is stopped."""
        if not self.workers.pause(0):
            return False
        seconds = backoff_s(attempt, self.settings.retry_wait_s)
        self.reporter.noted(f"{label}: retrying in {seconds:.0f} s, because the failure may be temporary")
        return self.workers.pause(seconds)

    @contextmanager
    def here(self, label: str) -> Iterator[Progress]:
        """Report the ``with`` block as a stage that runs in this process; yield a function that reports progress."""
        with self._reported(label) as own:
            self._receive(own, 0, 0, STARTED)
            yield lambda done, total, unit="": self._receive(own, done, total, unit)

    @contextmanager
    def _reported(self, label: str) -> Iterator[str]:
        """Report a stage's end; yield its label, with a number while other stages with this label are running."""
        with self._order:
            labels = (label if number == 1 else f"{label} ({number})" for number in itertools.count(1))
            label = next(free for free in labels if free not in self._awaited)
            self._awaited[label] = False
        logger = get_run_logger()
        logger.info("%s: started on %s, process %d", label, platform.node(), os.getpid())
        error = ""
        try:
            yield label
            logger.info("%s: done", label)
        except BaseException as failure:
            error = str(failure) or type(failure).__name__
            raise
        finally:
            with self._order:
                # A stage that was stopped before it began has nothing to report.
                if self._awaited.pop(label) or not error:
                    self.reporter.finished(label, error)

    def _receive(self, label: str, done: float, total: float, unit: str) -> None:
        with self._order:
            if label not in self._awaited:
                return
            if unit == STARTED:
                self._awaited[label] = True
                self.reporter.started(label)
            else:
                self.reporter.progressed(label, done, total, unit)


_EXECUTION: ContextVar[Execution] = ContextVar("nightquant_execution")
_FIRST = threading.Lock()


@contextmanager
def executing(settings: Settings, reporter: Reporter) -> Iterator[Execution]:
    """Provide an execution for this context and for threads that copy the context; stop the workers after the block."""
    # Remove the signing key from the environment, because the settings already contain the key.
    with without_signing_key():
        execution = Execution(settings, reporter)
        token = _EXECUTION.set(execution)
        try:
            with execution.workers:
                yield execution
        finally:
            _EXECUTION.reset(token)


def current_execution() -> Execution:
    """Return this context's execution or, on a remote worker, this process's execution."""
    if (execution := _EXECUTION.get(None)) is not None:
        return execution
    with _FIRST:  # the threads of a Dask worker share one execution
        return _remote_execution()


def note(remark: str) -> None:
    """Write a remark to the terminal and to the run's log."""
    get_run_logger().warning("%s", remark)
    current_execution().reporter.noted(remark)


@cache
def _remote_execution() -> Execution:
    # Python does not let daemonic processes, such as Dask's workers, start child processes, because the children might
    # outlive their parents. However, nightquant's workers exit when their parent exits (see `flows.execution.workers`).
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    execution = Execution(load_settings(), Reporter(), workers=1)
    # An ``atexit`` function would run too late, because multiprocessing waits for children first.
    Finalize(None, execution.workers.stop, exitpriority=100)
    return execution
