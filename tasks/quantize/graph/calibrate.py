"""Calibration: representative images through the observers."""

from __future__ import annotations

from itertools import islice

import torch
from torch import nn

from storage.errors import QuantizationError
from tasks.domains.image_classification.images import load_images
from tasks.quantize.base import Context
from tasks.quantize.methods.static import StaticRecipe


def calibrate(model: nn.Module, recipe: StaticRecipe, context: Context) -> int:
    """Run the recipe's calibration batches through a prepared model, in the order in which they are stored.

    Returns
    -------
    int
        Images seen; fewer than the recipe asks for where the data set has fewer.

    Raises
    ------
    QuantizationError
        There is no calibration image, or the model gives NaN or infinity for one.
    """
    split = load_images(context.dataset, "calibration", context.store)
    seen = 0
    with torch.no_grad():
        batches = islice(split.batches(recipe.calibration_batch_size), recipe.calibration_batches)
        for number, (images, _) in enumerate(batches, start=1):
            refuse_non_finite(_observe(model, images, number), f"batch {number} of calibration")
            seen += len(images)
            context.progress(number, recipe.calibration_batches, "calibration batches")
    if seen == 0:
        raise QuantizationError(
            f'The data set of workload "{context.workload.name}" has no calibration images.',
            hint="Set data.calibration above 0, or use a data set with more training images.",
        )
    return seen


def _observe(model: nn.Module, images: torch.Tensor, number: int) -> torch.Tensor:
    try:
        output: torch.Tensor = model(images)
    except RuntimeError as error:
        # A histogram observer cannot bin what lies between NaN and NaN.
        if "is not finite" not in str(error):
            raise
        raise QuantizationError(
            f"An activation of the model is NaN or infinite in batch {number} of calibration.",
            hint="Look at the float checkpoint and at the calibration images.",
        ) from error
    return output


def refuse_non_finite_state(model: nn.Module) -> None:
    """Refuse a float model with NaN or infinity among its parameters and buffers.

    Raises
    ------
    QuantizationError
        Names the first such tensor.
    """
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise QuantizationError(
                f'The float checkpoint has NaN or infinity in "{name}".', hint="Train or fetch the checkpoint anew."
            )


def refuse_non_finite(output: torch.Tensor | tuple[torch.Tensor, ...], where: str) -> None:
    """Refuse an output that holds NaN or infinity.

    Raises
    ------
    QuantizationError
        It does.
    """
    for tensor in output if isinstance(output, tuple | list) else (output,):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise QuantizationError(
                f"The model gives NaN or infinity in {where}.",
                hint="Look at the float checkpoint: its weights or its outputs are not finite.",
            )
