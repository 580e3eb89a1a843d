"""What candidates are made from: a float model, example inputs, and data if there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor, nn

from tasks.data.training import FineTuning, OwnTraining
from tasks.job import Workspace
from tasks.refs import Architecture

T = TypeVar("T")


@dataclass(frozen=True)
class Data(Generic[T]):
    """Data in batches of a size; ``made_by`` is the function whose code decides them."""

    of_size: Callable[[int], T]
    made_by: Callable[..., object]


@dataclass(frozen=True)
class ModelSource:
    """A float model and its data, as methods and runtimes ask for them: plain values, whatever the domain.

    Attributes
    ----------
    name
        The workload's name, for messages.
    float_model
        Makes a new float model with the checkpoint's weights, in evaluation mode.
    example_inputs
        The benchmark's inputs by name, in calling order.
    axes
        The inputs' axes whose lengths differ from call to call, by the inputs' names, named by length.
    architecture
        What the float model is rebuilt from without its weights.
    made_from
        Everything that decides the above; goes into the digests of what is made from it.
    calibration
        Batches of representative positional inputs, always in the same order.
    fine_tuning
        What quantization-aware training needs.
    """

    name: str
    float_model: Callable[[], nn.Module]
    example_inputs: Mapping[str, Tensor]
    axes: Mapping[str, Mapping[int, str]]
    architecture: Architecture
    made_from: Mapping[str, object]
    workspace: Workspace
    calibration: Data[Iterator[tuple[Tensor, ...]]] | None = None
    fine_tuning: Data[FineTuning | OwnTraining] | None = None

    def calibration_batches(self, batch_size: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield calibration inputs; workloads whose methods need what the domain lacks are refused as files."""
        assert self.calibration is not None
        return self.calibration.of_size(batch_size)

    def tuning(self, batch_size: int) -> FineTuning | OwnTraining:
        """Return what fine-tuning needs; as for calibration, the workload file has been checked."""
        assert self.fine_tuning is not None
        return self.fine_tuning.of_size(batch_size)
