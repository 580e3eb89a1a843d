"""Training by purpose of the workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tasks.progress import Progress, silent
from tasks.registry import resolve

if TYPE_CHECKING:
    from torch import Tensor

    from storage.artifacts import ArtifactStore
    from tasks.refs import DatasetRef
    from tasks.workload.workload import Workload

TRAINERS = {
    "language-model": "tasks.domains.language_model.training:train_language_model",
    "image-classification": "tasks.domains.image_classification.training:train_classifier",
}


def train(
    workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress = silent
) -> dict[str, Tensor]:
    """Train the workload's model as its ``[checkpoint]`` says; deterministic for its seed.

    Returns
    -------
    dict
        The state dict on the CPU, float32.
    """
    trainer: Callable[[Workload, DatasetRef, ArtifactStore, Progress], dict[str, Tensor]]
    trainer = resolve(TRAINERS, workload.purpose)
    return trainer(workload, dataset, store, progress)
