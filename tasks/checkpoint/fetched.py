"""Weights from a file or a URI."""

from __future__ import annotations

from storage.artifacts import ArtifactStore
from storage.transfer import fetch
from tasks.checkpoint import state_file
from tasks.checkpoint.artifact import find_or_make
from tasks.job import Progress
from tasks.refs import CheckpointRef, DatasetRef
from tasks.sources import code_digest
from tasks.workload import Workload
from tasks.workload.checkpoint import FetchedCheckpoint


def obtain_fetched(workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress) -> CheckpointRef:
    """Fetch a state dict, check it and keep its tensors.

    Raises
    ------
    ConfigurationError
        The URI is not allowed, or has no ``sha256`` though it is remote.
    InputError
        The file cannot be had, is not what its SHA-256 says, holds more than tensors, or does not fit the workload.
    """
    settings = workload.checkpoint
    if not isinstance(settings, FetchedCheckpoint):
        raise TypeError(f"not a fetched checkpoint: {settings.kind}")
    with fetch(
        settings.uri,
        store.root / "downloads",
        sha256=settings.sha256,
        max_bytes=settings.max_bytes,
        retries=settings.retries,
        progress=progress,
    ) as source:
        made_from = {
            "sha256": source.sha256,
            "model": workload.model.model_dump(mode="json"),
            "vocabulary": dataset.vocabulary,
            "classes": dataset.classes,
            "code": code_digest("tasks.checkpoint.state_file"),
        }
        return find_or_make(
            workload, dataset, store, made_from, lambda: state_file.read_state(source.path(), settings.uri)
        )
