"""Weights trained here on first use."""

from __future__ import annotations

import torch

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from tasks.checkpoint.artifact import find_or_make
from tasks.checkpoint.blank import build_blank
from tasks.device import training_device
from tasks.domains import DOMAINS
from tasks.domains.base import Trains
from tasks.job import Progress, Workspace
from tasks.refs import CheckpointRef, DatasetRef
from tasks.sources import model_digest
from tasks.workload import Workload


def obtain_trained(workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress) -> CheckpointRef:
    """Train the workload's model, or find what an equal training gave before.

    Raises
    ------
    ConfigurationError
        The domain trains no models.
    """
    domain = DOMAINS[workload.domain]
    if not isinstance(domain, Trains):
        raise ConfigurationError(
            f'Workload "{workload.name}": checkpoint.kind "train" does not fit domain "{workload.domain}", '
            f"which {Trains.lack}.",
            hint="Use another checkpoint.kind.",
        )
    trainer: Trains[Workload] = domain
    blank = build_blank(lambda: DOMAINS[workload.domain].build(workload.model, dataset))
    made_from = {
        "model": workload.model.model_dump(mode="json"),
        "checkpoint": workload.checkpoint.model_dump(mode="json"),
        "dataset": dataset.digest,
        "torch": torch.__version__,
        "device": training_device().type,
        "code": model_digest(blank, workload.model, DOMAINS[workload.domain].build, trainer.train),
    }
    workspace = Workspace(store, progress)
    return find_or_make(workload, dataset, store, made_from, lambda: trainer.train(workload, dataset, workspace))
