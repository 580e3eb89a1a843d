"""Trials of workloads in the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from flows.trial import Run, built, compared
from storage.artifacts import ArtifactStore
from tasks.values.job import Workspace
from tasks.values.results import Preview
from tasks.workload import Workload

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


Before = Callable[[Callable[..., object], str, tuple[Any, ...]], object]


class Here(Run):
    """Runs stages here, when their results are asked for.

    If `before` returns a value for a stage, its label and its arguments, that is its result.
    """

    def __init__(self, store: Path, before: Before | None = None) -> None:
        self._workspace, self._before = Workspace(ArtifactStore(store)), before

    def __call__(self, stage: Callable[[Workspace, *Ts], R], label: str, *args: *Ts, limit_s: float | None = None) -> R:
        given = self._before(stage, label, args) if self._before else None
        return stage(self._workspace, *args) if given is None else given  # type: ignore[return-value]

    @contextmanager
    def side_by_side(self) -> Iterator[Executor]:
        yield _Lazy()


class _Lazy(Executor):
    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        future = Future[R]()
        future.result = lambda timeout=None: fn(*args, **kwargs)  # type: ignore[method-assign]
        return future


def tried_out(workload: Workload, run: Run) -> Preview:
    """Return the preview of a complete trial."""
    found = built(workload, run)
    for further in compared(workload, found, run):
        found = further
    return found
