"""The random initial weights that a seed gives."""

from __future__ import annotations

import torch
from torch import Tensor

from storage.artifacts import ArtifactStore
from storage.digest import source_digest
from tasks.checkpoint.artifact import find_or_make
from tasks.checkpoint.blank import build_blank
from tasks.models import build
from tasks.progress import Progress
from tasks.refs import CheckpointRef, DatasetRef
from tasks.sources import model_sources
from tasks.workload import Workload
from tasks.workload.model import LstmSpec, SeededCheckpoint


def obtain_seeded(workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress) -> CheckpointRef:
    """Draw the weights that the model gets when torch's generator starts from the seed."""
    if not isinstance(workload.checkpoint, SeededCheckpoint):
        raise TypeError(f"not a seeded checkpoint: {workload.checkpoint.kind}")
    seed = workload.checkpoint.seed
    model = build_blank(lambda: build(workload.model, dataset))
    made_from = {
        "model": workload.model.model_dump(mode="json"),
        "seed": seed,
        "dataset": dataset.digest,
        "torch": torch.__version__,
        "made_by": source_digest(*model_sources(model, workload.model)),
    }
    reference = find_or_make(workload, dataset, store, made_from, lambda: draw_weights(workload, dataset, seed))
    progress(1, 1, "checkpoint")
    return reference


def draw_weights(workload: Workload, dataset: DatasetRef, seed: int) -> dict[str, Tensor]:
    """The initial state dict for `seed`; the global generator is left as it was."""
    if isinstance(workload.model, LstmSpec):
        # PyTorch's recipe draws its inputs first, so its weights depend on the shape of the input.
        from tasks.domains.sequence.model import seeded_state

        return seeded_state(workload, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(workload.model, dataset).state_dict()
