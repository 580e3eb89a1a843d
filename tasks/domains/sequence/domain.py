"""The ``sequence`` domain: the model and the random input from PyTorch's recipe "Dynamic Quantization"."""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from tasks.data.evaluation import Quality, checked_outputs
from tasks.data.outputs import Call
from tasks.data.samples import Description, find_or_write, load_samples, write_split
from tasks.data.sections import RandomSequence
from tasks.data.weights import load_checkpoint
from tasks.domains.base import Axes, Domain
from tasks.domains.sequence import LstmSpec, SequenceWorkload
from tasks.environment.sources import code_digest
from tasks.values.job import Job, Workspace
from tasks.values.refs import DatasetRef

_INPUTS = ("inputs", "h", "c")


class DemonstrationLstm(nn.Module):
    """An LSTM with equal input and hidden sizes, called with the inputs and the states h and c as separate tensors."""

    def __init__(self, dimension: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dimension, dimension, layers)

    def forward(self, inputs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs, float32 [T, B, D], and the new states h and c, float32 [L, B, D]."""
        outputs, (h, c) = self.lstm(inputs, (h, c))
        return outputs, h, c


class Sequence(Domain[SequenceWorkload, LstmSpec]):
    """The domain ``sequence``."""

    outputs = ("outputs", "h", "c")
    open_axes: ClassVar[Axes] = {"inputs": {0: "time", 1: "batch"}, "h": {1: "batch"}, "c": {1: "batch"}}

    def prepare(self, workload: SequenceWorkload, workspace: Workspace) -> DatasetRef:
        """Store the float32 tensors ``inputs`` [T, B, D], ``h`` and ``c`` [L, B, D], drawn with ``data.seed``."""
        data, spec = workload.data, workload.model
        made_from = {
            "data": data.model_dump(mode="json"),
            "model": spec.model_dump(mode="json"),
            "torch": torch.__version__,
            "code": code_digest(_draw_sequence),
        }

        def fill(folder: Path) -> Description:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(data.seed)
                write_split(folder, "test", _draw_sequence(data, spec))
            shape = (data.length, spec.dimension)
            return Description(splits={"test": data.batch_size}, inputs=_INPUTS, sample_shape=shape)

        return find_or_write(workspace.store, made_from, fill)

    def build(self, model: LstmSpec, dataset: DatasetRef) -> nn.Module:
        """Build the network, which does not depend on the data set."""
        return DemonstrationLstm(model.dimension, model.layers)

    def draw_weights(self, workload: SequenceWorkload, dataset: DatasetRef, seed: int) -> dict[str, Tensor]:
        """Draw the weights after the workload's random sequence, as in PyTorch's recipe."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            _draw_sequence(workload.data, workload.model)
            return self.build(workload.model, dataset).state_dict()

    def example_inputs(
        self, workload: SequenceWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """Return the workload's random sequence and hidden states; repeat their columns to fill a larger batch."""
        split = load_samples(dataset, "test", store)
        columns = torch.arange(batch_size) % workload.data.batch_size
        return {name: split[name][:, columns].contiguous() for name in _INPUTS}

    def evaluate(
        self, job: Job[SequenceWorkload], call: Call, workspace: Workspace, *, singly: bool = False
    ) -> Quality:
        """Compare the outputs of the timed call with the float model's outputs."""
        workload, store = job.workload, workspace.store
        reference = self.build(workload.model, job.dataset)
        load_checkpoint(reference, job.checkpoint, store)
        inputs = self.example_inputs(workload, job.dataset, store, workload.benchmark.batch_size).values()
        expected, actual = reference(*inputs)[0], checked_outputs(call(*inputs), workload.data.length)
        magnitude, change = expected.double().abs().mean().item(), (expected.double() - actual.double()).abs()
        difference = change.mean().item()
        metrics = {
            "float_mean_absolute_output": magnitude,
            "mean_absolute_output": actual.double().abs().mean().item(),
            "mean_absolute_difference": difference,
            "difference_percent": 100 * difference / magnitude if magnitude else (math.inf if difference else 0.0),
        }
        samples = {"difference": change.flatten().float()}
        return Quality(
            "difference_percent", metrics["difference_percent"], False, metrics, samples, count=expected.numel()
        )


def _draw_sequence(data: RandomSequence, spec: LstmSpec) -> dict[str, Tensor]:
    """Draw inputs and states from torch's global generator, in the order of PyTorch's recipe."""
    state = (spec.layers, data.batch_size, spec.dimension)
    inputs = torch.randn(data.length, data.batch_size, spec.dimension)
    return {"inputs": inputs, "h": torch.randn(state), "c": torch.randn(state)}
