"""Quantization-aware training by a callable, which has batches, loss and optimizer of its own."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from storage.errors import QuantizationError
from tasks.quantize.prepared import copied, find_first_ranges, to_training

if TYPE_CHECKING:
    from tasks.data.tuning import OwnTraining
    from tasks.job import Progress
    from tasks.quantize.methods.qat import QatRecipe


def train_prepared(
    model: nn.Module,
    recipe: QatRecipe,
    tuning: OwnTraining,
    calibration: Iterable[tuple[Tensor, ...]],
    progress: Progress,
) -> dict[str, Tensor]:
    """Train a model prepared with fake quantization; its state dict after the last epoch, on the CPU.

    The callable runs anew where ranges or statistics are frozen, for the epochs that are left.

    Raises
    ------
    QuantizationError
        There are no calibration samples, or a weight became NaN or infinite.
    """
    find_first_ranges(model, recipe, calibration, torch.device("cpu"))
    frozen = (min(after, recipe.epochs) for after in (recipe.freeze_observers_after, recipe.freeze_batch_norm_after))
    for start, stop in pairwise(sorted({0, *frozen, recipe.epochs})):
        progress(start, recipe.epochs, "epochs")
        to_training(model, recipe, start)
        tuning.train(model, recipe.seed + start, stop - start)
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise QuantizationError(
                f'Training of recipe "{recipe.name}" diverged: "{name}" holds NaN or infinities.',
                hint="Train it more gently, for instance with a lower learning rate.",
            )
    return copied(model.state_dict())
