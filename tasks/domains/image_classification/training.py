"""Training of an image classifier: AdamW under a one-cycle learning rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from storage.errors import MeasurementError
from tasks.compute import intra_op_threads, training_device
from tasks.domains.image_classification.images import training_batches
from tasks.domains.image_classification.model import build_vision

if TYPE_CHECKING:
    from tasks.domains.image_classification.sections import ImageWorkload
    from tasks.job import Workspace
    from tasks.refs import DatasetRef
    from tasks.workload.base import TrainedCheckpoint

# How a sum is cut among threads decides its last bits; and two workloads train side by side, one on each core.
_THREADS = 1
_WEIGHT_DECAY = 0.05
_LABEL_SMOOTHING = 0.05
_SHORTEST_CYCLE = 5


def train_classifier(workload: ImageWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
    """Train on the train split for ``checkpoint.epochs`` epochs and return the last weights, on the CPU.

    ``checkpoint.learning_rate`` is the peak of the one-cycle schedule (Smith and Topin, "Super-Convergence", 2018);
    images are shifted at random. The same seed, machine and libraries give the same weights.

    Raises
    ------
    MeasurementError
        The loss became NaN or infinite.
    """
    settings = cast("TrainedCheckpoint", workload.checkpoint)
    device = training_device()
    steps = math.ceil(dataset.splits["train"] / settings.batch_size)
    generator = torch.Generator().manual_seed(settings.seed)
    with (
        torch.random.fork_rng(),
        intra_op_threads(_THREADS),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True),
    ):
        torch.manual_seed(settings.seed)
        model = build_vision(workload.model, dataset).to(device).train()
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, weight_decay=_WEIGHT_DECAY, fused=True
        )
        schedule = one_cycle(optimizer, settings.learning_rate, settings.epochs * steps)
        for epoch in range(settings.epochs):
            batches = training_batches(dataset, workspace.store, settings.batch_size, generator)
            for step, (images, labels) in enumerate(batches, start=1):
                optimizer.zero_grad(set_to_none=True)
                logits = model(images.to(device))
                loss = cross_entropy(logits, labels.to(device), label_smoothing=_LABEL_SMOOTHING)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                workspace.progress(epoch + step / steps, settings.epochs, f"epochs, loss {loss.item():.3f}")
            if not math.isfinite(loss.item()):
                raise MeasurementError(
                    f'Training of workload "{workload.name}" diverged in epoch {epoch + 1}: loss {loss.item()}.',
                    hint="Lower checkpoint.learning_rate.",
                )
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def one_cycle(
    optimizer: torch.optim.Optimizer, learning_rate: float, steps: int
) -> torch.optim.lr_scheduler.OneCycleLR:
    """A quarter of the steps up to `learning_rate`, the others down to nearly zero."""
    # A cycle of four steps would rise for none of them, and OneCycleLR would divide by that.
    total = max(_SHORTEST_CYCLE, steps + 1)
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=total, pct_start=0.25)
