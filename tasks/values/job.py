"""The arguments of every stage function: a job, and a workspace for the job's files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from storage.artifacts import ArtifactStore, artifact_digest
from storage.errors import NightquantError, StoreError
from storage.locks import passing_lock
from tasks.values.refs import CheckpointRef, DatasetRef
from tasks.workload.workload import Workload

W = TypeVar("W", bound=Workload)


class Progress(Protocol):
    """Callback that receives a stage's completed work, total work and unit, in the stage's thread."""

    def __call__(self, done: float, total: float, unit: str = "") -> None:
        """Report the stage's progress."""


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
    """A stage's artifact store and progress callback."""

    store: ArtifactStore
    progress: Progress = silent

    @contextmanager
    def alone(self, digest: str) -> Iterator[Path]:
        """Hold an artifact's lock while the block makes the artifact.

        Yield a folder for intermediate files, from which interrupted work can resume. It is removed when the block
        ends, unless the block is interrupted, the store is not writable, or a transient error occurs.
        """
        with passing_lock(self.store.work_folder(digest).with_suffix(".lock")):
            work = self.store.work_folder(digest)  # create the folder again, because the lock's last holder removed it
            try:
                yield work
            except NightquantError as error:
                if not (error.transient or isinstance(error, StoreError)):
                    shutil.rmtree(work, ignore_errors=True)
                raise
            shutil.rmtree(work, ignore_errors=True)

    def find_or_make(self, kind: str, made_from: Mapping[str, object], make: Callable[[Path], None]) -> Path:
        """Return the artifact's folder; if the store lacks the artifact, call `make` to write the files."""
        digest, store = artifact_digest(kind, made_from), self.store
        if store.find(kind, digest) is None:
            with self.alone(digest):
                if store.find(kind, digest) is None:
                    with store.create(kind, digest, made_from) as folder:
                        make(folder)
        return store.path(kind, digest)
