"""The random initial weights that a seed gives."""

from __future__ import annotations

import torch

from storage.artifacts import ArtifactStore
from tasks.checkpoint.artifact import find_or_make
from tasks.checkpoint.blank import build_blank
from tasks.domains import DOMAINS
from tasks.job import Progress
from tasks.refs import CheckpointRef, DatasetRef
from tasks.sources import model_digest
from tasks.workload import Workload
from tasks.workload.checkpoint import SeededCheckpoint


def obtain_seeded(workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress) -> CheckpointRef:
    """Draw the weights that the model gets when torch's generator starts from the seed."""
    if not isinstance(workload.checkpoint, SeededCheckpoint):
        raise TypeError(f"not a seeded checkpoint: {workload.checkpoint.kind}")
    seed, domain = workload.checkpoint.seed, DOMAINS[workload.domain]
    model = build_blank(lambda: domain.build(workload.model, dataset))
    made_from = {
        "model": workload.model.model_dump(mode="json"),
        "seed": seed,
        "dataset": dataset.digest,
        "torch": torch.__version__,
        "code": model_digest(model, workload.model, domain.build, domain.draw_weights),
    }
    reference = find_or_make(workload, dataset, store, made_from, lambda: domain.draw_weights(workload, dataset, seed))
    progress(1, 1, "checkpoint")
    return reference
