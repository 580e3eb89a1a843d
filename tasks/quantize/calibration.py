"""Calibration: a prepared model is shown data, and refused where its numbers are not finite."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from storage.errors import QuantizationError
from tasks.outputs import tensors_of
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Calibration


def batches_of(source: ModelSource, calibration: Calibration) -> Iterator[tuple[Tensor, ...]]:
    """Yield the calibration batches that are asked for, as far as there are as many, and report progress behind each.

    Raises
    ------
    QuantizationError
        There are none.
    """
    number = 0
    wanted = islice(source.calibration_batches(calibration.batch_size), calibration.batches)
    for number, inputs in enumerate(wanted, start=1):
        yield inputs
        source.workspace.progress(number, calibration.batches, "calibration batches")
    if not number:
        raise QuantizationError(
            f'The data set of workload "{source.name}" has no calibration samples.',
            hint="Set data.calibration above 0, or use a data set with more training samples.",
        )


def calibrate(prepared: nn.Module, source: ModelSource, calibration: Calibration) -> None:
    """Run calibration batches through a prepared model.

    Raises
    ------
    QuantizationError
        There are no batches, or the model returns NaN or infinity for one.
    """
    with torch.no_grad():
        for number, inputs in enumerate(batches_of(source, calibration), start=1):
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
