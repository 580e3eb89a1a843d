"""Data sets: a table from ``data.kind`` to the function that prepares it, imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import MappingProxyType
from typing import cast

from storage.artifacts import ArtifactStore
from tasks.progress import Progress, silent
from tasks.refs import DatasetRef
from tasks.workload import Workload

PREPARERS = MappingProxyType(
    {
        "pydoc-topics": "tasks.prepare.pydoc:prepare_pydoc",
        "text": "tasks.prepare.text:prepare_text",
        "random-sequence": "tasks.prepare.sequence:prepare_sequence",
        "rendered-characters": "tasks.prepare.rendered:prepare_rendered",
        "image-folder": "tasks.prepare.image_folder:prepare_image_folder",
        "torchvision": "tasks.prepare.torchvision_data:prepare_torchvision",
    }
)

Preparer = Callable[[Workload, ArtifactStore, Progress], DatasetRef]


def prepare(workload: Workload, store: ArtifactStore, progress: Progress = silent) -> DatasetRef:
    """Make the workload's data set, or find it in the store.

    Raises
    ------
    InputError
        The data is missing, broken or refused.
    ConfigurationError
        The ``[data]`` section asks for something that cannot be.
    StoreError
        The store cannot be written.
    """
    module, _, function = PREPARERS[workload.data.kind].partition(":")
    return cast(Preparer, getattr(import_module(module), function))(workload, store, progress)
