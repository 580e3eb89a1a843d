"""Execution of a run's stages: the workers, the reporter, and the stages' durations.

Prefect passes only parameters to a task. A task therefore finds its execution through a context variable, which the
run's threads inherit. In a Dask worker, the context variable is not set, so the worker creates an execution
with one worker process.
"""

from __future__ import annotations

import contextvars
import itertools
import logging
import math
import multiprocessing
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.util import Finalize
from typing import TypeVar, TypeVarTuple, cast
from uuid import UUID

import httpx
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from flows.execution.workers import STARTED, StoppedError, Workers
from flows.reporter import Reporter
from flows.settings import Settings, children_inherit, load_settings
from storage.root import set_cache_folder
from storage.transient import backoff_s
from tasks.job import Progress, Workspace
from tasks.machine import available_cores

R = TypeVar("R")
Ts = TypeVarTuple("Ts")
_FIRST_AFTER_S, _EVERY_S = 5.0, 5.0


@dataclass(frozen=True)
class Invocation:
    """Settings and reporter that a command passes to the flow.

    Prefect stores a flow's parameters, so the command passes the settings and the reporter in a context variable.
    """

    settings: Settings
    reporter: Reporter = field(default_factory=Reporter)


INVOCATION: ContextVar[Invocation] = ContextVar("nightquant_invocation")


def current_invocation() -> Invocation:
    """Return the command's invocation, or, in a deployment, an invocation with this process's settings."""
    return INVOCATION.get(None) or Invocation(load_settings())


class Execution:
    """Executor that runs stages in worker processes or in this process, and reports the stages' progress."""

    def __init__(self, settings: Settings, reporter: Reporter, workers: int | None = None) -> None:
        set_cache_folder(settings.cache)
        self.settings, self.reporter = settings, reporter
        threads = max(1, available_cores() // settings.workers)
        self.workers = Workers(workers or settings.workers, threads, settings.cache, listener=self._receive)
        # Start and end times of finished stages, in seconds on the host's monotonic clock.
        self._busy: list[tuple[float, float]] = []
        self._awaited: dict[str, _StageProgress] = {}
        # One thread reports a stage's progress and another thread reports its end; the lock keeps the reports in order.
        self._order = threading.Lock()

    def run(
        self, stage: Callable[[Workspace, *Ts], R], label: str, timeout_s: float | None, store: str, *args: *Ts
    ) -> R:
        """Run a stage in a worker and report its progress; see `Workers.run` for parameters and exceptions."""
        progress = self._awaiting(label)
        with self._logged(progress, time.monotonic()):
            finished = self.workers.run(stage, progress.label, timeout_s, store, *args)
        self._ended(progress, finished.began, finished.ended)
        progress.finished()
        return finished.value

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
        progress = self._awaiting(label)
        self._receive(progress.label, 0, 0, STARTED)
        began = time.monotonic()
        with self._logged(progress, began):
            yield lambda done, total, unit="": self.reporter.progressed(progress.label, done, total, unit)
        self._ended(progress, began, time.monotonic())

    def _awaiting(self, label: str) -> _StageProgress:
        """Give a stage a label of its own: add a number while other stages with this label are running."""
        with self._order:
            labels = (label if number == 1 else f"{label} ({number})" for number in itertools.count(1))
            progress = _StageProgress(next(free for free in labels if free not in self._awaited))
            self._awaited[progress.label] = progress
            return progress

    @contextmanager
    def _logged(self, progress: _StageProgress, began: float) -> Iterator[None]:
        logger, label = get_run_logger(), progress.label
        logger.info("%s: started on %s, process %d", label, platform.node(), os.getpid())
        try:
            yield
        except BaseException as failure:
            if isinstance(failure, StoppedError) and not progress.has_begun:
                raise  # the stage never began, so there is nothing to report
            self._ended(progress, began, time.monotonic(), str(failure) or type(failure).__name__)
            raise
        logger.info("%s: done", label)

    def busy_s(self) -> float:
        """Return the number of seconds during which at least one stage ran; the rest of the wall time is overhead."""
        total, end = 0.0, float("-inf")
        for start, stop in sorted(self._busy):
            total += max(0.0, stop - max(start, end))
            end = max(end, stop)
        return total

    def _receive(self, label: str, done: float, total: float, unit: str) -> None:
        with self._order:
            if (progress := self._awaited.get(label)) is None:
                return
            if unit == STARTED:
                progress.has_begun = True
                self.reporter.started(label)
                return
            self.reporter.progressed(label, done, total, unit)
        progress.progressed(done, total, unit)

    def _ended(self, progress: _StageProgress, began: float, ended: float, error: str = "") -> None:
        with self._order:
            del self._awaited[progress.label]
            self._busy.append((began, ended))
            self.reporter.finished(progress.label, ended - began, error)


_EXECUTION: ContextVar[Execution] = ContextVar("nightquant_execution")
_FIRST = threading.Lock()


@contextmanager
def executing(settings: Settings, reporter: Reporter) -> Iterator[Execution]:
    """Provide an execution for this context and for threads that copy the context; stop the workers after the block."""
    # Remove the signing key from the environment, because the settings already contain the key.
    with children_inherit(NIGHTQUANT_SIGNING_KEY=None):
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


@dataclass
class _StageProgress:
    """Progress of a stage, shown as a Prefect artifact if the stage takes more than a few seconds.

    An instance copies the run context, because the thread that receives the workers' updates has no run context.
    """

    label: str
    has_begun: bool = False
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)
    _next: float = field(default_factory=lambda: time.monotonic() + _FIRST_AFTER_S)
    _artifact: UUID | None = None

    def progressed(self, done: float, total: float, unit: str) -> None:
        """Create or update the progress bar, at most once every few seconds."""
        if total > 0 and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            self._show(min(100.0, 100.0 * done / total), f"{self.label}: {unit}")

    def finished(self) -> None:
        """Set the progress bar to 100% if the bar exists."""
        if self._artifact is not None:
            self._show(100.0, self.label)

    def _show(self, percent: float, description: str) -> None:
        context = self._context.copy()  # two threads cannot enter the same context at the same time
        try:
            if self._artifact is None:
                artifact = context.run(create_progress_artifact, percent, description=description)
                self._artifact = cast(UUID, artifact)  # outside an event loop, Prefect returns the id directly
            else:
                context.run(update_progress_artifact, self._artifact, percent, description=description)
        except (httpx.HTTPError, PrefectException, RuntimeError) as error:
            # An unreachable server must not stop this thread, which also reports progress to the terminal. After the
            # task run ends, Prefect's client is closed and raises `RuntimeError`.
            self._next = math.inf
            logging.getLogger(__name__).warning("%s: Prefect's UI no longer shows progress: %s", self.label, error)
