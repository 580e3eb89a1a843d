"""The arguments of every stage function: a job, and a workspace for the job's files; and facts, which are reused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from storage.artifacts import ArtifactStore, artifact_digest
from storage.digest import digest_of
from storage.errors import NightquantError, StoreError
from storage.locks import passing_lock
from tasks.values.refs import CandidateRef, CheckpointRef, DatasetRef, Frozen
from tasks.workload.workload import Workload

W = TypeVar("W", bound=Workload)
T = TypeVar("T", bound=Frozen)
_FACT = "fact.json"


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


@dataclass(frozen=True)
class Fact(Generic[T]):
    """Location of a fact about a candidate, which later runs reuse: an evaluation, a proof or memory, but never a time.

    The location is derived from `conditions` and the `candidate`'s files. The fact is an instance of `model`.
    """

    kind: str
    model: type[T]
    candidate: CandidateRef
    conditions: Mapping[str, object]

    def find(self, store: ArtifactStore) -> T | None:
        """Return the fact, or None if the store lacks it; raise `StoreError` if the artifact is damaged."""
        folder = store.find(self.kind, artifact_digest(self.kind, self._made_from(store)))
        if folder is None:
            return None
        return self.model.model_validate_json((folder / _FACT).read_text(encoding="utf-8"))

    def keep(self, value: T, store: ArtifactStore) -> None:
        """Store the fact; raise `StoreError` if the store is not writable."""
        made_from = self._made_from(store)
        with store.create(self.kind, artifact_digest(self.kind, made_from), made_from) as folder:
            (folder / _FACT).write_text(value.model_dump_json(), encoding="utf-8")

    def _made_from(self, store: ArtifactStore) -> dict[str, object]:
        # Not every runtime builds reproducible files, so a candidate that was built again may have other files.
        artifacts = {self.candidate.kind: self.candidate.digest, **self.candidate.shared}
        files = {kind: store.manifest_digest(kind, digest) for kind, digest in artifacts.items()}
        # Hash the conditions, because they may contain other artifacts' digests. Otherwise, `storage.gc` would keep
        # the fact while any of these digests is reachable, even if the candidate's digest is not.
        return {"candidate": self.candidate.digest, "conditions": digest_of({**self.conditions, "files": files})}
