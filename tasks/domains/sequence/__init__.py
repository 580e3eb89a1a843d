"""A bare LSTM on one random sequence, as PyTorch's recipe "Dynamic Quantization" has it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt

from storage.errors import MeasurementError
from tasks.data.metrics import Quality
from tasks.data.sections import RandomSequence
from tasks.domains.base import Domain
from tasks.workload.base import FetchedCheckpoint, Kind, Section, SeededCheckpoint
from tasks.workload.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from storage.artifacts import ArtifactStore
    from tasks.job import Job, Workspace
    from tasks.outputs import Call
    from tasks.refs import DatasetRef

_INPUTS = ("inputs", "h", "c")
_AXES: Mapping[str, Mapping[int, str]] = {
    "inputs": {0: "time", 1: "batch"},
    "h": {1: "batch"},
    "c": {1: "batch"},
}


class LstmSpec(Kind):
    """A bare LSTM whose input and hidden sizes are both ``dimension``."""

    kind: Literal["lstm"]
    dimension: PositiveInt = 8
    """Input and hidden size."""
    layers: PositiveInt = 1
    """Of the LSTM."""


class SequenceWorkload(Workload):
    """One LSTM, one sequence."""

    data: RandomSequence
    model: LstmSpec
    checkpoint: Annotated[FetchedCheckpoint | SeededCheckpoint, Field(discriminator="kind")]
    evaluate: Section = Section()


class Sequence(Domain[SequenceWorkload, LstmSpec]):
    """The domain ``sequence``."""

    workload = SequenceWorkload
    outputs = ("outputs", "h", "c")

    def prepare(self, workload: SequenceWorkload, workspace: Workspace) -> DatasetRef:
        """Keep the tensors ``inputs`` [T, B, D], ``h`` and ``c`` [L, B, D], all float32, that ``data.seed`` gives."""
        import torch

        from tasks.data.samples import Description, find_or_write
        from tasks.data.splits import write_split
        from tasks.domains.sequence.lstm import draw_sequence
        from tasks.sources import code_digest

        data, spec = workload.data, workload.model
        made_from = {
            "data": data.model_dump(mode="json"),
            "model": spec.model_dump(mode="json"),
            "torch": torch.__version__,
            "code": code_digest(draw_sequence),
        }

        def fill(folder: Path) -> Description:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(data.seed)
                write_split(folder, "test", draw_sequence(data, spec))
            shape = (data.length, spec.dimension)
            return Description(splits={"test": data.batch_size}, inputs=_INPUTS, sample_shape=shape)

        return find_or_write(workspace.store, made_from, fill)

    def build(self, model: LstmSpec, dataset: DatasetRef) -> nn.Module:
        """Build the network; the data set has no say in it."""
        from tasks.domains.sequence.lstm import DemonstrationLstm

        return DemonstrationLstm(model.dimension, model.layers)

    def draw_weights(self, workload: SequenceWorkload, dataset: DatasetRef, seed: int) -> dict[str, Tensor]:
        """The weights that the recipe draws after the workload's random sequence."""
        import torch

        from tasks.domains.sequence.lstm import draw_sequence

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            draw_sequence(workload.data, workload.model)
            return self.build(workload.model, dataset).state_dict()

    def example_inputs(
        self, workload: SequenceWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """The workload's random sequence and hidden state; further columns, where asked for, repeat the first ones."""
        import torch

        from tasks.data.splits import load_samples

        split = load_samples(dataset, "test", store)
        columns = torch.arange(batch_size) % workload.data.batch_size
        return {name: split[name][:, columns].contiguous() for name in _INPUTS}

    def axes(self, workload: SequenceWorkload, examples: Mapping[str, Tensor]) -> Mapping[str, Mapping[int, str]]:
        """Any number of steps and columns."""
        return _AXES

    def evaluate(self, job: Job[SequenceWorkload], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
        """Mean absolute output, mean absolute difference from float, and that as a percentage, of the timed call."""
        from tasks.data.weights import load_state
        from tasks.domains.sequence.lstm import differences
        from tasks.outputs import tensors_of

        workload, store = job.workload, workspace.store
        reference = self.build(workload.model, job.dataset)
        reference.load_state_dict(load_state(job.checkpoint, store))
        inputs = self.example_inputs(workload, job.dataset, store, workload.benchmark.batch_size).values()
        expected, actual = reference(*inputs)[0], tensors_of(call(*inputs))[0]
        metrics = differences(expected, actual)
        if not all(map(math.isfinite, metrics.values())):
            raise MeasurementError(
                "the model's outputs hold NaN or infinities.",
                hint="Exclude the module that overflows (`exclude`) or use another dtype.",
            )
        samples = {"difference": (expected - actual).abs().flatten().float()}
        return Quality(
            "difference_percent", metrics["difference_percent"], False, metrics, samples, count=expected.numel()
        )
