"""Where a run's stages are carried out and who is told: handed to the tasks through a context variable.

Prefect hands a task only its parameters; threads of the run inherit this context, while a Dask or Ray worker has none
and uses one worker process of its own.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.util import Finalize
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from flows.isolation import STARTED, Workers
from flows.settings import load_settings
from tasks.job import Workspace

P = ParamSpec("P")
R = TypeVar("R")

Watcher = Callable[[float, float, str], None]


class Reporter(Protocol):
    """Who is told how the run goes; labels read ``workload · recipe: stage``."""

    def started(self, label: str) -> None:
        """Hear that a stage begins."""

    def progressed(self, label: str, done: float, total: float, unit: str) -> None:
        """Hear how far a stage is."""

    def finished(self, label: str, seconds: float, error: str = "") -> None:
        """Hear that a stage ended, and why where it failed."""

    def noted(self, text: str) -> None:
        """Hear what a person must know of the run as a whole."""


class Silence:
    """Tells nobody."""

    def started(self, label: str) -> None:
        """Ignore it."""

    def progressed(self, label: str, done: float, total: float, unit: str) -> None:
        """Ignore it."""

    def finished(self, label: str, seconds: float, error: str = "") -> None:
        """Ignore it."""

    def noted(self, text: str) -> None:
        """Ignore it."""


@dataclass
class Stopwatch:
    """When stage bodies ran, so that the rest of the wall time can be called overhead."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def busy_s(self) -> float:
        """Seconds in which at least one stage body ran."""
        total, end = 0.0, float("-inf")
        for start, stop in sorted(self.spans):
            total += max(0.0, stop - max(start, end))
            end = max(end, stop)
        return total


@dataclass(frozen=True)
class Site:
    """The workers of this process, its reporter and its stopwatch."""

    workers: Workers
    reporter: Reporter
    timeout_s: float
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    watchers: dict[str, Watcher] = field(default_factory=dict)

    def heard(self, label: str, done: float, total: float, unit: str) -> None:
        """Pass on what a worker told of its stage."""
        if unit == STARTED:
            self.reporter.started(label)
            return
        self.reporter.progressed(label, done, total, unit)
        if label in self.watchers:
            self.watchers[label](done, total, unit)

    def run(
        self,
        stage: Callable[Concatenate[Workspace, P], R],
        label: str,
        watcher: Watcher | None,
        timeout_s: float | None,
        store: str,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a stage in a worker and keep the reporter informed; see `Workers.run` for what it raises.

        Parameters
        ----------
        watcher
            Hears of this stage's progress: work done, all work, and the unit.
        timeout_s
            When to end the stage; None for one that limits itself.
        """
        if watcher is not None:
            self.watchers[label] = watcher
        queued = time.monotonic()
        try:
            finished = self.workers.run(stage, label, timeout_s, store, *args, **kwargs)
        except BaseException as failure:
            self._ended(label, queued, time.monotonic(), str(failure) or type(failure).__name__)
            raise
        self._ended(label, finished.began, finished.ended)
        return finished.value

    def _ended(self, label: str, began: float, ended: float, error: str = "") -> None:
        self.stopwatch.spans.append((began, ended))
        self.reporter.finished(label, ended - began, error)


_SITE: ContextVar[Site] = ContextVar("nightquant_site")
_FIRST = threading.Lock()


_REPORTER: ContextVar[Reporter] = ContextVar("nightquant_reporter")


@contextmanager
def reporting_to(reporter: Reporter) -> Iterator[None]:
    """Tell `reporter` of the runs in this context."""
    token = _REPORTER.set(reporter)
    try:
        yield
    finally:
        _REPORTER.reset(token)


def current_reporter() -> Reporter:
    """The reporter of this context; silence where there is none (Prefect's run log still has every line)."""
    return _REPORTER.get(None) or Silence()


@contextmanager
def at_site(site: Site) -> Iterator[Site]:
    """Make `site` the current one for this context and the threads that copy it."""
    token = _SITE.set(site)
    try:
        yield site
    finally:
        _SITE.reset(token)


def current_site() -> Site:
    """The site of this context; on a remote worker, one that belongs to its process."""
    return _SITE.get(None) or _remote_site()


def _remote_site() -> Site:
    with _FIRST:  # tasks on two threads of a Dask worker share its one process
        return _make_remote_site()


@cache
def _make_remote_site() -> Site:
    settings = load_settings()
    # Python denies children to the daemonic processes that Dask's workers are, because they might be left behind; ours
    # end with their parent (see flows.isolation).
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    workers = Workers(count=1, threads=settings.threads_per_worker).__enter__()
    # Not atexit: multiprocessing waits for a process's children before that.
    Finalize(None, workers.stop, exitpriority=100)
    return Site(workers, Silence(), settings.stage_timeout_s)
