"""The source of candidates, and the base class of the converters that apply a method's specs to its float model.

A source contains a float model, example inputs, and data for calibration and fine-tuning.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from storage.errors import NightquantError, QuantizationError
from tasks.data.outputs import tensors_of
from tasks.data.training import FineTuning, OwnTraining
from tasks.environment.libraries import in_one_line, place_of
from tasks.quantize.spec import Calibration, Spec
from tasks.values.job import Workspace
from tasks.values.refs import Architecture, ModuleCoverage
from tasks.workload.recipe import METHODS

_NO_KERNEL = re.compile(r"Could not run '([\w:.]+)' with arguments from the '(\w+)' backend")


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
        method = METHODS[spec.method]
        data = [self.calibration.func] if method.needs and self.calibration else []
        return method.converts.partition(":")[0], *data


def batches_of(source: ModelSource, calibration: Calibration) -> Iterator[tuple[Tensor, ...]]:
    """Yield at most `calibration.batches` batches of samples; raise `QuantizationError` if there are none."""
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
            for tensor in tensors_of(prepared(*inputs)):
                if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                    raise QuantizationError(
                        f"The model returns NaN or infinity for calibration batch {number}.",
                        hint="Check whether the float model's weights and outputs are finite.",
                    )


def without_parametrizations(model: nn.Module) -> nn.Module:
    """Replace a model's parametrized weights, in place, by the values that they have now."""
    for module in list(model.modules()):
        if not parametrize.is_parametrized(module):
            continue
        assert isinstance(module.parametrizations, nn.ModuleDict)
        for name, computed in list(module.parametrizations.items()):
            assert isinstance(computed, parametrize.ParametrizationList)
            if computed.is_tensor:
                # torch writes the computed values into this tensor, which another module may use as well.
                computed.original = type(computed.original)(computed.original.detach().clone())
            parametrize.remove_parametrizations(module, name)
    return model


@contextmanager
def refusing(action: str, hint: str = "") -> Iterator[None]:
    """Convert an unexpected error in the block to a `QuantizationError` with the failed action, reason and place."""
    try:
        yield
    except NightquantError:
        raise
    except Exception as error:
        raise QuantizationError(f"{action}: {reason_of(error)}{place_of(error)}.", hint=hint) from error


def reason_of(error: BaseException) -> str:
    """Describe an error's original cause, because exporters wrap errors several times."""
    while error.__cause__ is not None:
        error = error.__cause__
    missing = _NO_KERNEL.search(str(error))
    return f"{missing[1]} has no kernel for {missing[2]} tensors" if missing else in_one_line(error)


@dataclass(frozen=True)
class Converted:
    """A converted model in evaluation mode."""

    model: nn.Module
    coverage: tuple[ModuleCoverage, ...]


@dataclass(frozen=True)
class Trained:
    """A fine-tuned model that can be exported; ``folded`` maps the paths of batch norms to the layers' paths."""

    model: nn.Module
    folded: Mapping[str, str]


class Converter(ABC):
    """An object that applies a method's specs to torch modules."""

    @abstractmethod
    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Quantize a float model that is in evaluation mode; the model may be changed in place."""

    @abstractmethod
    def skeleton(self, model: nn.Module, spec: Spec, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Give a model the structure of a converted model, into which saved tensors can be loaded."""

    def pack(self, model: nn.Module) -> nn.Module:
        """Arrange a model's loaded weights in the order that the kernels need."""
        return model

    def library(self, workspace: Workspace) -> Path | None:
        """Find or compile the operator library that converted models call; return None if torch has all operators."""
        return None

    def train(self, spec: Spec, source: ModelSource) -> Trained:
        """Fine-tune a model with the spec's training settings, or load the result of an earlier run."""
        raise NotImplementedError


def converter_of(spec: Spec) -> Converter:
    """Import and create the converter that applies a spec."""
    converter: Converter = resolve_name(METHODS[spec.method].converts)()
    return converter
