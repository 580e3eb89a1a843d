"""What candidates are made from: a float model, example inputs, and data to calibrate and fine-tune with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from storage.errors import QuantizationError
from tasks.data.training import FineTuning, OwnTraining
from tasks.extensions import METHODS
from tasks.job import Workspace
from tasks.outputs import tensors_of
from tasks.quantize.spec import Calibration, Spec
from tasks.refs import Architecture


@dataclass(frozen=True)
class ModelSource:
    """A float model and its data, as methods and runtimes ask for them: plain values, whatever the domain."""

    name: str  # the workload's, for messages
    float_model: Callable[[], nn.Module]  # makes a new one with the checkpoint's weights, in evaluation mode
    example_inputs: Mapping[str, Tensor]  # the benchmark's, by name in calling order
    axes: Mapping[str, Mapping[int, str]]  # of the inputs that differ in length from call to call, named by length
    architecture: Architecture  # what the float model is rebuilt from without its weights
    made_from: Mapping[str, object]  # everything that decides the above, for digests
    workspace: Workspace
    # By batch size; the code of the functions that are partially applied decides the data. None if the domain has none.
    calibration: partial[Iterator[tuple[Tensor, ...]]] | None = None  # representative positional inputs, in one order
    fine_tuning: partial[FineTuning | OwnTraining] | None = None

    def calibration_batches(self, batch_size: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield calibration inputs; workloads whose methods need what the domain lacks are refused as files."""
        assert self.calibration is not None
        return self.calibration(batch_size)

    def code_of(self, spec: Spec) -> tuple[str | Callable[..., object], ...]:
        """Return modules and functions, for a digest, that decide what becomes of this source by a spec's method."""
        method = METHODS[spec.recipe.method]
        data = [self.calibration.func] if method.needs and self.calibration else []
        return method.converts.partition(":")[0], *data


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
