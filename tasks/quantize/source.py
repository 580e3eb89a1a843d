"""The source of candidates: a float model, example inputs, and data for calibration and fine-tuning."""

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
    """A float model with its data, in a form that does not depend on the domain."""

    name: str  # name of the workload, for use in messages
    float_model: Callable[[], nn.Module]  # function that returns a new model in evaluation mode, with trained weights
    example_inputs: Mapping[str, Tensor]  # the benchmark's inputs by name, in argument order
    axes: Mapping[str, Mapping[int, str]]  # dynamic axes of the inputs, with a name for each axis's length
    architecture: Architecture  # description from which the float model, without its weights, can be rebuilt
    made_from: Mapping[str, object]  # everything that determines the fields above, for use in digests
    workspace: Workspace
    # `calibration` and `fine_tuning` are functions of the batch size, or None if the domain does not provide the data.
    calibration: partial[Iterator[tuple[Tensor, ...]]] | None = None  # representative inputs, in a fixed order
    fine_tuning: partial[FineTuning | OwnTraining] | None = None

    def calibration_batches(self, batch_size: int) -> Iterator[tuple[Tensor, ...]]:
        """Return calibration batches. Validation rejects workloads that need calibration data but do not have any."""
        assert self.calibration is not None
        return self.calibration(batch_size)

    def code_of(self, spec: Spec) -> tuple[str | Callable[..., object], ...]:
        """Return the modules and functions that determine the converted model; the model's digest covers their code."""
        method = METHODS[spec.recipe.method]
        data = [self.calibration.func] if method.needs and self.calibration else []
        return method.converts.partition(":")[0], *data


def batches_of(source: ModelSource, calibration: Calibration) -> Iterator[tuple[Tensor, ...]]:
    """Yield up to `calibration.batches` batches of samples; raise `QuantizationError` if there are none."""
    number = 0
    batches = islice(source.calibration_batches(calibration.batch_size), calibration.batches)
    for number, inputs in enumerate(batches, start=1):
        yield inputs
        source.workspace.progress(number, calibration.batches, "calibration batches")
    if not number:
        raise QuantizationError(
            f'The data set of workload "{source.name}" has no calibration samples.',
            hint="Increase `data.calibration`, or use a data set with more training samples.",
        )


def calibrate(prepared: nn.Module, source: ModelSource, calibration: Calibration) -> None:
    """Run calibration batches through a prepared model; raise `QuantizationError` if it returns NaN or infinity."""
    with torch.no_grad():
        for number, inputs in enumerate(batches_of(source, calibration), start=1):
            refuse_non_finite(prepared(*inputs), f"calibration batch {number}")


def refuse_non_finite_state(model: nn.Module) -> None:
    """Raise `QuantizationError` if a float model's parameters or buffers contain NaN or infinity."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise QuantizationError(
                f'The float checkpoint contains NaN or infinity in the tensor "{name}".',
                hint="Train or fetch the checkpoint again.",
            )


def refuse_non_finite(output: object, inputs: str) -> None:
    """Raise `QuantizationError` if a model's output contains NaN or infinity."""
    for tensor in tensors_of(output):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise QuantizationError(
                f"The model returns NaN or infinity for {inputs}.",
                hint="Check whether the float model's weights and outputs are finite.",
            )
