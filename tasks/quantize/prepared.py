"""What is done to a model prepared for quantization-aware training before and between the epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.ao.quantization import disable_fake_quant, disable_observer, enable_fake_quant, enable_observer
from torch.nn.modules.batchnorm import _BatchNorm

from storage.errors import QuantizationError

if TYPE_CHECKING:
    from tasks.quantize.methods.qat import QatRecipe

_FIRST_RANGES_BATCHES = 8


def find_first_ranges(
    model: nn.Module, recipe: QatRecipe, calibration: Iterable[tuple[Tensor, ...]], device: torch.device
) -> None:
    """Let the observers see calibration samples, so that the first step does not train against arbitrary ranges.

    Raises
    ------
    QuantizationError
        There are none.
    """
    batches = list(islice(calibration, _FIRST_RANGES_BATCHES))
    if not batches:
        raise QuantizationError(
            f'There are no calibration samples for recipe "{recipe.name}" to start from.',
            hint="Set data.calibration above 0, or use a data set with more training samples.",
        )
    model.eval()
    model.apply(disable_fake_quant)
    model.apply(enable_observer)
    with torch.no_grad():
        for inputs in batches:
            model(*(tensor.to(device) for tensor in inputs))
    model.apply(enable_fake_quant)


def to_training(model: nn.Module, recipe: QatRecipe, epoch: int) -> None:
    """Put the model into training mode, with ranges and statistics that move or stay as the recipe has it by then."""
    model.train()
    model.apply(disable_observer if epoch >= recipe.freeze_observers_after else enable_observer)
    if epoch >= recipe.freeze_batch_norm_after:
        model.apply(_freeze_batch_norm)


def copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, in memory that they share with nothing: safetensors refuses to write others."""
    return {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}


def _freeze_batch_norm(module: nn.Module) -> None:
    if hasattr(module, "freeze_bn_stats"):
        module.freeze_bn_stats()  # type: ignore[operator]
    elif isinstance(module, _BatchNorm):
        module.eval()
