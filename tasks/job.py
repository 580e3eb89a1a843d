"""What a stage works on, and where: the two values that every stage function takes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from storage.artifacts import ArtifactStore, artifact_digest
from storage.errors import NightquantError, StoreError, unwritable
from storage.locks import passing_lock
from tasks.refs import CheckpointRef, DatasetRef
from tasks.workload.workload import Workload

W = TypeVar("W", bound=Workload)


class Progress(Protocol):
    """Called with work done, all work, and what the unit is; from the stage's own thread, as often as it likes."""

    def __call__(self, done: float, total: float, unit: str = "") -> None:
        """Take note of how far the stage is."""


def silent(done: float, total: float, unit: str = "") -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Job(Generic[W]):
    """A workload with its prepared data set and its float weights."""

    workload: W
    dataset: DatasetRef
    checkpoint: CheckpointRef


@dataclass(frozen=True)
class Workspace:
    """Where a stage finds and keeps artifacts, and whom it tells how far it is."""

    store: ArtifactStore
    progress: Progress = silent

    @contextmanager
    def alone(self, digest: str) -> Iterator[Path]:
        """Make an artifact while no other process makes the same one; wait where one does.

        Yields a work folder for what unfinished work goes on from after a kill. It is removed at the end, unless the
        block was interrupted, the store could not be written, or the error may pass: other errors would come again.

        Raises
        ------
        StoreError
            The store cannot be written.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(passing_lock(self.store.work_folder(digest).with_suffix(".lock")))
            except OSError as error:
                raise unwritable(self.store.root, error) from error
            work = self.store.work_folder(digest)  # again, for its last holder has removed it
            try:
                yield work
            except NightquantError as error:
                if not (error.transient or isinstance(error, StoreError)):
                    shutil.rmtree(work, ignore_errors=True)
                raise
            shutil.rmtree(work, ignore_errors=True)

    def find_or_make(self, kind: str, made_from: Mapping[str, object], make: Callable[[Path], None]) -> Path:
        """Find the artifact that is made from this, or let `make` write its files; return its folder."""
        digest, store = artifact_digest(kind, made_from), self.store
        if store.find(kind, digest) is None:
            with self.alone(digest):
                if store.find(kind, digest) is None:
                    with store.create(kind, digest, made_from) as folder:
                        make(folder)
        return store.path(kind, digest)
