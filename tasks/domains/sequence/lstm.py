"""The model, its random input and its metric, drawn and computed as PyTorch's recipe "Dynamic Quantization" does.

The recipe seeds once and then draws the input sequence, the two hidden states and the weights, in this order. So the
weights of a seed depend on the shape of the input.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from storage.artifacts import ArtifactStore, artifact_digest
from storage.errors import MeasurementError
from tasks.checkpoint import load_state
from tasks.domains.base import Quality
from tasks.outputs import Call, tensors_of
from tasks.refs import DatasetRef
from tasks.sources import code_digest
from tasks.tensor_files import save_tensors

if TYPE_CHECKING:
    from tasks.domains.sequence import LstmSpec, RandomSequence, SequenceWorkload
    from tasks.job import Job, Workspace

KIND = "sequence"
TENSORS_FILE = "sequence.safetensors"


class DemonstrationLstm(nn.Module):
    """One LSTM with equal input and hidden sizes, called with flat tensors."""

    def __init__(self, dimension: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dimension, dimension, layers)

    def forward(self, inputs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From inputs [T, B, D] and h, c [L, B, D] to outputs [T, B, D], h, c; all float32."""
        outputs, (h, c) = self.lstm(inputs, (h, c))
        return outputs, h, c


def prepare_sequence(workload: SequenceWorkload, workspace: Workspace) -> DatasetRef:
    """Keep the tensors ``inputs`` [T, B, D], ``h`` and ``c`` [L, B, D], all float32, that ``data.seed`` gives."""
    data, spec, store = workload.data, workload.model, workspace.store
    made_from = {
        "data": data.model_dump(mode="json"),
        "model": spec.model_dump(mode="json"),
        "torch": torch.__version__,
        "code": code_digest(draw_sequence),
    }
    digest = artifact_digest(KIND, made_from)
    if store.find(KIND, digest) is None:
        with torch.random.fork_rng(devices=[]), store.create(KIND, digest, made_from) as folder:
            torch.manual_seed(data.seed)
            save_tensors(draw_sequence(data, spec), folder / TENSORS_FILE)
    workspace.progress(1, 1, "sequence")
    return DatasetRef(
        kind=KIND, digest=digest, splits={"test": data.batch_size}, sample_shape=(data.length, spec.dimension)
    )


def draw_sequence(data: RandomSequence, spec: LstmSpec) -> dict[str, Tensor]:
    """Draw inputs, then h, then c from torch's global generator, in the recipe's order."""
    state = (spec.layers, data.batch_size, spec.dimension)
    return {
        "inputs": torch.randn(data.length, data.batch_size, spec.dimension),
        "h": torch.randn(state),
        "c": torch.randn(state),
    }


def seeded_state(workload: SequenceWorkload, seed: int) -> dict[str, Tensor]:
    """The weights that the recipe draws after the workload's random sequence; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draw_sequence(workload.data, workload.model)
        return DemonstrationLstm(workload.model.dimension, workload.model.layers).state_dict()


def example_sequence(
    workload: SequenceWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
) -> dict[str, Tensor]:
    """The workload's random sequence and hidden state; further columns, where asked for, repeat the first ones."""
    tensors = load_file(store.path(dataset.kind, dataset.digest) / TENSORS_FILE)
    columns = torch.arange(batch_size) % workload.data.batch_size
    return {name: tensors[name][:, columns].contiguous() for name in ("inputs", "h", "c")}


def compare_with_float(job: Job[SequenceWorkload], call: Call, workspace: Workspace) -> Quality:
    """Mean absolute output, mean absolute difference from float, and that difference as a percentage.

    Raises
    ------
    MeasurementError
        The output holds NaN or infinities.
    """
    workload, store = job.workload, workspace.store
    reference = DemonstrationLstm(workload.model.dimension, workload.model.layers)
    reference.load_state_dict(load_state(job.checkpoint, store))
    inputs = example_sequence(workload, job.dataset, store, workload.benchmark.batch_size).values()
    expected, actual = reference(*inputs)[0], tensors_of(call(*inputs))[0]
    metrics = differences(expected, actual)
    if not all(map(math.isfinite, metrics.values())):
        raise MeasurementError(
            "the model's outputs hold NaN or infinities.",
            hint="Exclude the module that overflows (`exclude`) or use another dtype.",
        )
    workspace.progress(1, 1, "sequence")
    samples = {"difference": (expected - actual).abs().flatten().float()}
    value, count = metrics["difference_percent"], expected.numel()
    return Quality("difference_percent", value, higher_is_better=False, metrics=metrics, samples=samples, count=count)


def differences(expected: Tensor, actual: Tensor) -> dict[str, float]:
    """Mean absolute outputs of both, their mean absolute difference, and that as a percentage of the float mean."""
    magnitude = expected.abs().mean().item()
    difference = (expected - actual).abs().mean().item()
    return {
        "float_mean_absolute_output": magnitude,
        "mean_absolute_output": actual.abs().mean().item(),
        "mean_absolute_difference": difference,
        "difference_percent": 100 * difference / magnitude if magnitude else (math.inf if difference else 0.0),
    }
