"""torchvision's published weights."""

from __future__ import annotations

from storage.artifacts import ArtifactStore
from tasks.checkpoint.artifact import find_or_make
from tasks.domains.image_classification.sections import TorchvisionWeights
from tasks.domains.image_classification.weights import published, weights_state
from tasks.job import Progress
from tasks.refs import CheckpointRef, DatasetRef
from tasks.workload import Workload


def obtain_published(
    workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress
) -> CheckpointRef:
    """Download the weights that torchvision publishes under a name, or find them in the store.

    Raises
    ------
    ConfigurationError
        torchvision has no float weights of that name.
    InputError
        They cannot be downloaded, or do not fit the model.
    """
    if not isinstance(workload.checkpoint, TorchvisionWeights):
        raise TypeError(f"not torchvision's weights: {workload.checkpoint.kind}")
    name = workload.checkpoint.weights
    made_from = {
        "model": workload.model.model_dump(mode="json"),
        "weights": published(name).url,
        "classes": dataset.classes,
    }
    reference = find_or_make(workload, dataset, store, made_from, lambda: weights_state(name))
    progress(1, 1, "checkpoint")
    return reference
