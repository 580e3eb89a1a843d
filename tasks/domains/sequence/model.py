"""A bare LSTM and its random input, drawn as PyTorch's recipe "Dynamic Quantization" draws them.

The recipe seeds once and then draws the input sequence, the two hidden states and the weights, in this order. So the
weights of a seed depend on the shape of the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from tasks.domains.sequence.data import draw_sequence, load_sequence
from tasks.workload.data import RandomSequence
from tasks.workload.model import LstmSpec

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.refs import DatasetRef
    from tasks.workload.model import Model
    from tasks.workload.workload import Workload


class DemonstrationLstm(nn.Module):
    """One LSTM with equal input and hidden sizes, called with flat tensors."""

    def __init__(self, dimension: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dimension, dimension, layers)

    def forward(self, inputs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the LSTM.

        Parameters
        ----------
        inputs
            float32 [T, B, D].
        h, c
            float32 [L, B, D].

        Returns
        -------
        tuple
            outputs float32 [T, B, D], h, c.
        """
        outputs, (h, c) = self.lstm(inputs, (h, c))
        return outputs, h, c


def build_lstm(spec: Model, dataset: DatasetRef) -> DemonstrationLstm:
    """Build the network of `spec`; the data set has no say in it."""
    del dataset
    spec = cast(LstmSpec, spec)
    return DemonstrationLstm(spec.dimension, spec.layers)


def seeded_state(workload: Workload, seed: int) -> dict[str, Tensor]:
    """The weights that the recipe draws after the workload's random sequence; torch's generator is left as it was."""
    spec = cast(LstmSpec, workload.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draw_sequence(cast(RandomSequence, workload.data), spec)
        return DemonstrationLstm(spec.dimension, spec.layers).state_dict()


def example_sequence(
    workload: Workload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
) -> dict[str, Tensor]:
    """The workload's random sequence and hidden state; further columns, where asked for, repeat the first ones."""
    columns = torch.arange(batch_size) % cast(RandomSequence, workload.data).batch_size
    return {name: tensor[:, columns].contiguous() for name, tensor in load_sequence(dataset, store).items()}
