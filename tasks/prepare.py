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
        "pydoc-topics": "tasks.domains.language_model.pydoc:prepare_pydoc",
        "text": "tasks.domains.language_model.corpus:prepare_text",
        "random-sequence": "tasks.domains.sequence.data:prepare_sequence",
        "rendered-characters": "tasks.domains.image_classification.rendered:prepare_rendered",
        "image-folder": "tasks.domains.image_classification.image_folder:prepare_image_folder",
        "torchvision": "tasks.domains.image_classification.torchvision_data:prepare_torchvision",
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
