"""The model and its random input, drawn as PyTorch's recipe "Dynamic Quantization" does.

The recipe seeds once and then draws the input sequence, the two hidden states and the weights, in this order. So the
weights of a seed depend on the shape of the input.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from tasks.data.sections import RandomSequence
    from tasks.domains.sequence import LstmSpec


class DemonstrationLstm(nn.Module):
    """One LSTM with equal input and hidden sizes, called with flat tensors."""

    def __init__(self, dimension: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dimension, dimension, layers)

    def forward(self, inputs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From inputs [T, B, D] and h, c [L, B, D] to outputs [T, B, D], h, c; all float32."""
        outputs, (h, c) = self.lstm(inputs, (h, c))
        return outputs, h, c


def draw_sequence(data: RandomSequence, spec: LstmSpec) -> dict[str, Tensor]:
    """Draw inputs, then h, then c from torch's global generator, in the recipe's order."""
    state = (spec.layers, data.batch_size, spec.dimension)
    return {
        "inputs": torch.randn(data.length, data.batch_size, spec.dimension),
        "h": torch.randn(state),
        "c": torch.randn(state),
    }


def differences(expected: Tensor, actual: Tensor) -> dict[str, float]:
    """Mean absolute outputs of both, their mean absolute difference, and that as a percentage of the float mean."""
    expected, actual = expected.double(), actual.double()
    magnitude = expected.abs().mean().item()
    difference = (expected - actual).abs().mean().item()
    return {
        "float_mean_absolute_output": magnitude,
        "mean_absolute_output": actual.abs().mean().item(),
        "mean_absolute_difference": difference,
        "difference_percent": 100 * difference / magnitude if magnitude else (math.inf if difference else 0.0),
    }
