"""The reproducible training loop, and the components that a domain provides for fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from storage.errors import MeasurementError
from tasks.data.outputs import intra_op_threads, training_device
from tasks.values.job import Progress
from tasks.workload.base import TrainedCheckpoint

# The last bits of a sum depend on the number of threads. Other workloads can train on the remaining cores.
THREADS = 1


@dataclass(frozen=True)
class Training:
    """Components that a domain provides for training; the weights come from the last epoch, or the best validated."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    epoch: Callable[[], Iterator[tuple[float, Tensor]]]  # for each step, the completed fraction and the loss
    largest_gradient: float | None = None
    validate: Callable[[], float] | None = None


def train(
    make: Callable[[torch.device], Training], settings: TrainedCheckpoint, workload: str, progress: Progress
) -> dict[str, Tensor]:
    """Train the model that `make` builds, on CUDA if available; return the state dict on the CPU."""
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
            current_loss = math.nan
            for share, loss in training.epoch():
                training.optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                if training.largest_gradient is not None:
                    nn.utils.clip_grad_norm_(training.model.parameters(), training.largest_gradient)
                training.optimizer.step()
                training.schedule.step()
                current_loss = loss.item()
                progress(epoch + share, settings.epochs, f"epochs, loss {current_loss:.3f}")
            if training.validate is not None:
                current_loss = training.validate()
            if not math.isfinite(current_loss):
                raise MeasurementError(
                    f'Training of workload "{workload}" diverged in epoch {epoch + 1}: the loss is {current_loss}.',
                    hint="Lower checkpoint.learning_rate.",
                )
            if training.validate is None or current_loss < best_loss:
                state = training.model.state_dict()
                best = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}
                best_loss = current_loss
    return best


@dataclass(frozen=True)
class FineTuning:
    """Batches, a loss and a score for the caller's training loop."""

    steps_per_epoch: int
    batches: Callable[[torch.Generator], Iterator[tuple[tuple[Tensor, ...], Tensor]]]  # (inputs, targets) of one epoch
    loss: Callable[[object, Tensor], Tensor]  # of training-mode outputs and targets
    validate: Callable[[nn.Module, torch.device], tuple[float, float]]  # a score (higher is better) and the mean loss


@dataclass(frozen=True)
class OwnTraining:
    """The user's own training callable: ``train(model, seed, epochs)`` trains the model in place, on the CPU."""

    train: Callable[[nn.Module, int, int], None]
    made_from: Mapping[str, object]
