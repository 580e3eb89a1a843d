"""What a domain gives for fine-tuning a model: plain values, which know nothing of quantization."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class FineTuning(Protocol):
    """Batches, a loss and a score, for a training loop that the caller has."""

    @property
    def steps_per_epoch(self) -> int:
        """Return how many batches an epoch has."""

    def batches(self, generator: torch.Generator) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        """Yield one epoch of positional inputs and their target; all chance comes from the CPU generator."""

    def loss(self, outputs: object, target: Tensor) -> Tensor:
        """Compute the scalar that training minimizes, from what the model returned in training mode."""

    def validate(self, model: nn.Module, device: torch.device) -> tuple[float, float]:
        """Compute score (higher is better) and mean loss on the valid split, of a model in evaluation mode."""


@dataclass(frozen=True)
class OwnTraining:
    """A training that the user wrote: ``train(model, seed, epochs)`` trains on the CPU, in place.

    ``made_from`` decides what it does.
    """

    train: Callable[[nn.Module, int, int], None]
    made_from: Mapping[str, object]
