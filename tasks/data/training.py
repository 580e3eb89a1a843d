"""Training on first use, one loop that is deterministic for a seed; and what a domain gives for fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from storage.errors import MeasurementError
from tasks.job import Progress
from tasks.outputs import intra_op_threads, training_device
from tasks.workload.base import TrainedCheckpoint

# How a sum is cut among threads decides its last bits: one thread gives the same weights on any number of cores, and
# leaves the others to the training of the next workload.
THREADS = 1


@dataclass(frozen=True)
class Training:
    """What a domain contributes to its training.

    ``epoch`` yields the share of an epoch that is done after a step, and the step's loss. ``validate`` computes the
    loss on the valid split, by which the best epoch is chosen; without it the last one is. A loss of ``hopeless`` or
    more, after any epoch, has diverged. Gradients are clipped to the norm ``largest_gradient``.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    epoch: Callable[[], Iterator[tuple[float, Tensor]]]
    largest_gradient: float | None = None
    validate: Callable[[], float] | None = None
    hopeless: float = math.inf


def train(
    make: Callable[[torch.device], Training], settings: TrainedCheckpoint, workload: str, progress: Progress
) -> dict[str, Tensor]:
    """Train what `make` builds on a device, on CUDA where there is one; return the state dict on the CPU.

    For a seed, the same machine and the same libraries give the same weights.

    Raises
    ------
    MeasurementError
        The loss became NaN, infinite or hopeless.
    """
    best_loss, best = math.inf, dict[str, Tensor]()
    with (
        torch.random.fork_rng(),
        intra_op_threads(THREADS),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True),
    ):
        torch.manual_seed(settings.seed)
        training = make(training_device())
        for epoch in range(settings.epochs):
            training.model.train()
            reached = math.nan
            for share, loss in training.epoch():
                training.optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                if training.largest_gradient is not None:
                    nn.utils.clip_grad_norm_(training.model.parameters(), training.largest_gradient)
                training.optimizer.step()
                training.schedule.step()
                reached = loss.item()
                progress(epoch + share, settings.epochs, f"epochs, loss {reached:.3f}")
            if training.validate is not None:
                reached = training.validate()
            if not reached < training.hopeless:  # also true of NaN
                raise MeasurementError(
                    f'Training of workload "{workload}" diverged in epoch {epoch + 1}: loss {reached}.',
                    hint="Lower checkpoint.learning_rate.",
                )
            if training.validate is None or reached < best_loss:
                state = training.model.state_dict()
                best = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}
                best_loss = reached
    return best


@dataclass(frozen=True)
class FineTuning:
    """Batches, a loss and a score, for a training loop that the caller has.

    ``batches`` yields one epoch of positional inputs and their target; all chance comes from the CPU generator.
    ``loss`` computes the scalar that training minimizes, from what the model returned in training mode. ``validate``
    computes score (higher is better) and mean loss on the valid split, of a model in evaluation mode.
    """

    steps_per_epoch: int
    batches: Callable[[torch.Generator], Iterator[tuple[tuple[Tensor, ...], Tensor]]]
    loss: Callable[[object, Tensor], Tensor]
    validate: Callable[[nn.Module, torch.device], tuple[float, float]]


@dataclass(frozen=True)
class OwnTraining:
    """A training that the user wrote: ``train(model, seed, epochs)`` trains on the CPU, in place.

    ``made_from`` decides what it does.
    """

    train: Callable[[nn.Module, int, int], None]
    made_from: Mapping[str, object]
