"""Training of an image classifier: AdamW under a one-cycle learning rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from storage.errors import InputError, MeasurementError
from tasks.device import training_device
from tasks.domains.image_classification import images as prepared_images
from tasks.domains.image_classification.images import training_batches
from tasks.job import Progress, silent
from tasks.models import build
from tasks.threads import intra_op_threads
from tasks.workload.checkpoint import TrainedCheckpoint

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.refs import DatasetRef
    from tasks.workload.workload import Workload

# What besides this module decides the result.
PARTS = (prepared_images,)

# How a sum is cut among threads decides its last bits; and two workloads train side by side, one on each core.
_THREADS = 1
_WEIGHT_DECAY = 0.05
_LABEL_SMOOTHING = 0.05
_SHORTEST_CYCLE = 5


def train_classifier(
    workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress = silent
) -> dict[str, Tensor]:
    """Train on the train split for ``checkpoint.epochs`` epochs and give the last weights.

    ``checkpoint.learning_rate`` is the peak of the one-cycle schedule (Smith and Topin, "Super-Convergence", 2018);
    images are shifted at random. Training runs on CUDA where there is one. For a seed, the same machine and the same
    libraries give the same weights.

    Returns
    -------
    dict
        The state dict on the CPU.

    Raises
    ------
    InputError
        There are fewer than two training images, or batches of one.
    MeasurementError
        The loss became NaN or infinite.
    """
    settings = cast(TrainedCheckpoint, workload.checkpoint)
    if dataset.splits["train"] < 2:
        raise InputError(
            f'The data set of workload "{workload.name}" has {dataset.splits["train"]} training images.',
            hint="Give more images, or ask for smaller other splits in [data].",
        )
    device = training_device()
    with (
        torch.random.fork_rng(),
        intra_op_threads(_THREADS),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True),
    ):
        torch.manual_seed(settings.seed)
        model = build(workload.model, dataset).to(device)
        _fit(model, workload, dataset, store, progress)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def one_cycle(
    optimizer: torch.optim.Optimizer, learning_rate: float, steps: int
) -> torch.optim.lr_scheduler.OneCycleLR:
    """A quarter of the steps up to `learning_rate`, the others down to nearly zero."""
    # A cycle of four steps would rise for none of them, and OneCycleLR would divide by that.
    total = max(_SHORTEST_CYCLE, steps + 1)
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=total, pct_start=0.25)


def _fit(model: nn.Module, workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress) -> None:
    settings = cast(TrainedCheckpoint, workload.checkpoint)
    device = next(model.parameters()).device
    batches = math.ceil(dataset.splits["train"] / settings.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=_WEIGHT_DECAY, fused=True)
    schedule = one_cycle(optimizer, settings.learning_rate, settings.epochs * batches)
    generator = torch.Generator().manual_seed(settings.seed)
    model.train()
    for epoch in range(settings.epochs):
        for number, (images, labels) in enumerate(training_batches(dataset, store, settings.batch_size, generator)):
            optimizer.zero_grad(set_to_none=True)
            logits = model(images.to(device))
            loss = F.cross_entropy(logits, labels.to(device), label_smoothing=_LABEL_SMOOTHING)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            progress(epoch + (number + 1) / batches, settings.epochs, "epochs")
        if not math.isfinite(loss.item()):
            raise MeasurementError(
                f'Training of workload "{workload.name}" diverged in epoch {epoch + 1}: loss {loss.item()}.',
                hint="Lower checkpoint.learning_rate.",
            )
