"""Training of image classifiers on first use."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tasks.data.training import Training, train
from tasks.domains.image_classification.fine_tuning import training_batches
from tasks.domains.image_classification.network import build_vision

if TYPE_CHECKING:
    from tasks.domains.image_classification import ImageWorkload
    from tasks.job import Workspace
    from tasks.refs import DatasetRef
    from tasks.workload.base import TrainedCheckpoint

_WEIGHT_DECAY = 0.05
_LABEL_SMOOTHING = 0.05
_SHORTEST_CYCLE = 5


def train_classifier(workload: ImageWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
    """Train on the train split by AdamW, under a one-cycle learning rate whose peak is ``checkpoint.learning_rate``.

    Images are shifted at random. See `tasks.data.training.train`.

    Source: Smith and Topin, "Super-Convergence", 2018.
    """
    settings = cast("TrainedCheckpoint", workload.checkpoint)
    steps = math.ceil(dataset.splits["train"] / settings.batch_size)

    def make(device: torch.device) -> Training:
        generator = torch.Generator().manual_seed(settings.seed)
        model = build_vision(workload.model, dataset).to(device)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, weight_decay=_WEIGHT_DECAY, fused=True
        )

        def epoch() -> Iterator[tuple[float, Tensor]]:
            batches = training_batches(dataset, workspace.store, settings.batch_size, generator)
            for step, (images, labels) in enumerate(batches, start=1):
                logits = model(images.to(device))
                yield step / steps, cross_entropy(logits, labels.to(device), label_smoothing=_LABEL_SMOOTHING)

        schedule = one_cycle(optimizer, settings.learning_rate, settings.epochs * steps)
        return Training(model, optimizer, schedule, epoch)

    return train(make, settings, workload.name, workspace.progress)


def one_cycle(
    optimizer: torch.optim.Optimizer, learning_rate: float, steps: int
) -> torch.optim.lr_scheduler.OneCycleLR:
    """A quarter of the steps up to `learning_rate`, the others down to nearly zero."""
    # A cycle of four steps would rise for none of them, and OneCycleLR would divide by that.
    total = max(_SHORTEST_CYCLE, steps + 1)
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=total, pct_start=0.25)
