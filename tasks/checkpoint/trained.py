"""Weights trained here on first use."""

from __future__ import annotations

from importlib import import_module

import torch

from storage.artifacts import ArtifactStore
from storage.digest import source_digest
from storage.errors import ConfigurationError
from tasks.checkpoint.artifact import find_or_make
from tasks.checkpoint.blank import build_blank
from tasks.device import training_device
from tasks.models import build
from tasks.progress import Progress
from tasks.refs import CheckpointRef, DatasetRef
from tasks.sources import model_sources
from tasks.train import TRAINERS, train
from tasks.workload import Workload


def obtain_trained(workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress) -> CheckpointRef:
    """Train the workload's model, or find what an equal training gave before.

    Raises
    ------
    ConfigurationError
        Models of this purpose cannot be trained.
    """
    if workload.purpose not in TRAINERS:
        raise ConfigurationError(
            f'Workload "{workload.name}": checkpoint.kind "train" does not fit purpose "{workload.purpose}".',
            hint=f"It fits {', '.join(sorted(TRAINERS))}; use another checkpoint.kind.",
        )
    trainer = import_module(TRAINERS[workload.purpose].partition(":")[0])
    made_from = {
        "model": workload.model.model_dump(mode="json"),
        "checkpoint": workload.checkpoint.model_dump(mode="json"),
        "dataset": dataset.digest,
        "torch": torch.__version__,
        "device": training_device().type,
        "made_by": source_digest(
            trainer, *getattr(trainer, "PARTS", ()), *model_sources(_blank(workload, dataset), workload.model)
        ),
    }
    return find_or_make(workload, dataset, store, made_from, lambda: train(workload, dataset, store, progress))


def _blank(workload: Workload, dataset: DatasetRef) -> torch.nn.Module:
    return build_blank(lambda: build(workload.model, dataset))
