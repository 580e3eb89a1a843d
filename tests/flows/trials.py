"""Trials of workloads in the test's own process."""

from __future__ import annotations

from collections.abc import Callable
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


def runner(store: Path, before: Before | None = None) -> Run:
    """Run stages here; if `before` returns a value for a stage, its label and its arguments, use the value."""
    workspace = Workspace(ArtifactStore(store))

    def run(stage: Callable[[Workspace, *Ts], R], label: str, *args: *Ts, limit_s: float | None = None) -> R:
        given = before(stage, label, args) if before else None
        return stage(workspace, *args) if given is None else given  # type: ignore[return-value]

    return run


def tried_out(workload: Workload, run: Run) -> Preview:
    """Return the preview of a complete trial."""
    found = built(workload, run)
    for further in compared(workload, found, run):
        found = further
    return found
