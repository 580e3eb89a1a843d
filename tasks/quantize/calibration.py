"""Calibration: a prepared model is shown data, and refused where its numbers are not finite."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from storage.errors import QuantizationError
from tasks.outputs import tensors_of

if TYPE_CHECKING:
    from tasks.job import Progress


def calibrate(
    prepared: nn.Module, batches: Iterable[tuple[Tensor, ...]], total: int, workload_name: str, progress: Progress
) -> None:
    """Run the first `total` batches of representative positional inputs, where there are as many, through a model.

    Raises
    ------
    QuantizationError
        There are no batches, or the model returns NaN or infinity for one.
    """
    number = 0
    with torch.no_grad():
        for number, inputs in enumerate(islice(batches, total), start=1):
            try:
                output = prepared(*inputs)
            except RuntimeError as error:
                # A histogram observer cannot bin what lies between NaN and NaN.
                if "is not finite" not in str(error):
                    raise
                raise QuantizationError(
                    f"An activation of the model is NaN or infinite in batch {number} of calibration.",
                    hint="Look at the float checkpoint and at the calibration samples.",
                ) from error
            refuse_non_finite(output, f"batch {number} of calibration")
            progress(number, total, "calibration batches")
    if not number:
        raise QuantizationError(
            f'The data set of workload "{workload_name}" has no calibration samples.',
            hint="Set data.calibration above 0, or use a data set with more training samples.",
        )


def refuse_non_finite_state(model: nn.Module) -> None:
    """Refuse a float model with NaN or infinity among its parameters and buffers, with a `QuantizationError`."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise QuantizationError(
                f'The float checkpoint has NaN or infinity in "{name}".', hint="Train or fetch the checkpoint anew."
            )


def refuse_non_finite(output: object, where: str) -> None:
    """Refuse a model's output that holds NaN or infinity, with a `QuantizationError`."""
    for tensor in tensors_of(output):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise QuantizationError(
                f"The model gives NaN or infinity in {where}.",
                hint="Look at the float checkpoint: its weights or its outputs are not finite.",
            )
