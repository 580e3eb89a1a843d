"""Float weights: a table from ``checkpoint.kind`` to the module that gets them, imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from tasks.domains import DOMAINS
from tasks.job import Progress, Workspace, silent

if TYPE_CHECKING:
    from torch import Tensor

    from storage.artifacts import ArtifactStore
    from tasks.refs import CheckpointRef, DatasetRef
    from tasks.workload import Workload

OBTAINERS = MappingProxyType(
    {
        "train": "tasks.checkpoint.trained:obtain_trained",
        "uri": "tasks.checkpoint.fetched:obtain_fetched",
        "seeded": "tasks.checkpoint.seeded:obtain_seeded",
    }
)


def obtain(workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress = silent) -> CheckpointRef:
    """Train, fetch, draw or look up the workload's float weights, or find them in the store.

    Raises
    ------
    InputError
        The weights cannot be had, are broken, refused, or do not fit the workload and its data set.
    ConfigurationError
        The ``[checkpoint]`` section asks for something that cannot be.
    StoreError
        The store cannot be written.
    """
    if workload.checkpoint.kind not in OBTAINERS:
        return DOMAINS[workload.domain].obtain_checkpoint(workload, dataset, Workspace(store, progress))
    module, _, function = OBTAINERS[workload.checkpoint.kind].partition(":")
    obtainer: Callable[[Workload, DatasetRef, ArtifactStore, Progress], CheckpointRef]
    obtainer = getattr(import_module(module), function)
    return obtainer(workload, dataset, store, progress)


def load_state(checkpoint: CheckpointRef, store: ArtifactStore) -> dict[str, Tensor]:
    """The state dict of a checkpoint in the store; floating-point tensors are float32."""
    from tasks.checkpoint.artifact import read

    return read(checkpoint, store)
