"""torchvision's published weights."""

from __future__ import annotations

from collections.abc import Mapping

import torchvision
from torch import Tensor

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError, InputError
from tasks.checkpoint.artifact import find_or_make
from tasks.progress import Progress
from tasks.refs import CheckpointRef, DatasetRef
from tasks.workload import Workload
from tasks.workload.model import TorchvisionWeights


def obtain_published(
    workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress
) -> CheckpointRef:
    """Download the weights that torchvision publishes under a name, or find them in the store.

    Raises
    ------
    ConfigurationError
        torchvision has no weights of that name.
    InputError
        They cannot be downloaded.
    """
    if not isinstance(workload.checkpoint, TorchvisionWeights):
        raise TypeError(f"not torchvision's weights: {workload.checkpoint.kind}")
    name = workload.checkpoint.weights
    try:
        weights = torchvision.models.get_weight(name)
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f'Workload "{workload.name}": torchvision {torchvision.__version__} has no weights "{name}".',
            hint="Expected a name such as ResNet18_Weights.IMAGENET1K_V1.",
        ) from error
    made_from = {
        "model": workload.model.model_dump(mode="json"),
        "weights": weights.url,
        "classes": dataset.classes,
    }

    def download() -> Mapping[str, Tensor]:
        try:
            # The file's name carries the first digits of its SHA-256, which torch.hub compares.
            state: Mapping[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True)
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"{weights.url} cannot be had: {error}.",
                hint='Try again, or fetch it yourself and use checkpoint.kind = "uri".',
            ) from error
        return state

    reference = find_or_make(workload, dataset, store, made_from, download)
    progress(1, 1, "checkpoint")
    return reference
