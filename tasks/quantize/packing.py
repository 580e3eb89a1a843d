"""Weights in the order in which the kernels of `tasks.quantize.native` read them, and back.

Packed weights are one tensor of bytes. A matrix int8 [N, K] is padded with zeros to multiples of 16 and 64, and lies
there as [N / 16][K / 4][16][4] unsigned bytes, each 128 more than the weight; float32 [N] follow it as bytes. The order
is the same for every processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_CHANNELS, _FEATURES, _GATES = 16, 64, 4

# The largest sum of products of int8 with bytes must fit into int32.
MOST_FEATURES = (1 << 31) // (127 * 255) // _FEATURES * _FEATURES


@dataclass(frozen=True)
class QuantizedMatrix:
    """Weights of ``values * scale``: int8 [N, K] and float32 [N], a row for each output channel."""

    values: Tensor
    scale: Tensor


@dataclass(frozen=True)
class LstmLayer:
    """One layer: matrices [4H, I] and [4H, H] in torch's order of gates (i, f, g, o), and float32 [4H]."""

    input: QuantizedMatrix
    recurrent: QuantizedMatrix
    bias: Tensor


def quantize_rows(weight: Tensor) -> QuantizedMatrix:
    """Round each row of float [N, K] to 255 symmetric steps of its own; a row of zeros has the scale 0."""
    weight = weight.detach().float()
    scale = weight.abs().amax(1) / 127
    values = torch.round(weight / torch.where(scale > 0, scale, 1.0).unsqueeze(1)).clamp(-127, 127)
    return QuantizedMatrix(values.to(torch.int8), scale)


def pack_linear(matrix: QuantizedMatrix, bias: Tensor) -> Tensor:
    """One linear layer as uint8: matrix, scale, bias."""
    channels = _up(len(bias), _CHANNELS)
    floats = (_padded(values, channels) for values in (matrix.scale, bias))
    return _bytes(_pack(matrix.values), *floats)


def unpack_linear(packed: Tensor, out_features: int, in_features: int) -> tuple[QuantizedMatrix, Tensor]:
    """Matrix and bias of what `pack_linear` gave."""
    reader = _Reader(packed)
    values = reader.matrix(_up(out_features, _CHANNELS), in_features)
    scale, bias = (reader.floats(len(values)) for _ in range(2))
    return QuantizedMatrix(values[:out_features].contiguous(), scale[:out_features]), bias[:out_features]


def packed_linear_bytes(out_features: int, in_features: int) -> int:
    """Size of what `pack_linear` gives."""
    return _up(out_features, _CHANNELS) * (_up(in_features, _FEATURES) + 8)


def pack_lstm(layers: Sequence[LstmLayer]) -> Tensor:
    """All layers as uint8: of each both matrices, both scales, bias. The gates of 16 units lie together."""
    parts = []
    for layer in layers:
        matrices = layer.input, layer.recurrent
        parts += [_pack(_interleave(matrix.values)) for matrix in matrices]
        parts += [_interleave(values) for values in (*(matrix.scale for matrix in matrices), layer.bias)]
    return _bytes(*parts)


def unpack_lstm(packed: Tensor, layers: int, inputs: int, hidden: int) -> list[LstmLayer]:
    """The layers of what `pack_lstm` gave."""
    reader, channels, found = _Reader(packed), _GATES * _up(hidden, _CHANNELS), []
    for number in range(layers):
        matrices = [reader.matrix(channels, width) for width in (hidden if number else inputs, hidden)]
        scales = [reader.floats(channels) for _ in matrices]
        first, second = (
            QuantizedMatrix(_separate(values, hidden), _separate(scale, hidden))
            for values, scale in zip(matrices, scales, strict=True)
        )
        found.append(LstmLayer(first, second, _separate(reader.floats(channels), hidden)))
    return found


def packed_lstm_bytes(layers: int, inputs: int, hidden: int) -> int:
    """Size of what `pack_lstm` gives."""
    channels, width = _GATES * _up(hidden, _CHANNELS), _up(hidden, _FEATURES)
    return channels * (_up(inputs, _FEATURES) + width + 12 + (layers - 1) * (2 * width + 12))


@dataclass
class _Reader:
    """Takes one part after the other off packed weights."""

    packed: Tensor
    at: int = 0

    def matrix(self, rows: int, width: int) -> Tensor:
        padded = _up(width, _FEATURES)
        blocks = self._take(rows * padded).reshape(rows // _CHANNELS, padded // 4, _CHANNELS, 4)
        values = blocks.permute(0, 2, 1, 3).reshape(rows, padded)[:, :width]
        return (values.to(torch.int16) - 128).to(torch.int8)

    def floats(self, count: int) -> Tensor:
        return self._take(4 * count).clone().view(torch.float32)

    def _take(self, count: int) -> Tensor:
        self.at += count
        return self.packed[self.at - count : self.at]


def _pack(values: Tensor) -> Tensor:
    rows, width = values.shape
    full = torch.zeros(_up(rows, _CHANNELS), _up(width, _FEATURES), dtype=torch.int8)
    full[:rows, :width] = values
    shifted = (full.to(torch.int16) + 128).to(torch.uint8)
    return shifted.reshape(len(full) // _CHANNELS, _CHANNELS, -1, 4).permute(0, 2, 1, 3)


def _interleave(values: Tensor) -> Tensor:
    """From [4][H] to [H / 16][4][16] along the first axis."""
    hidden = len(values) // _GATES
    full = values.new_zeros(_GATES, _up(hidden, _CHANNELS), *values.shape[1:])
    full[:, :hidden] = values.reshape(_GATES, hidden, *values.shape[1:])
    return full.reshape(_GATES, -1, _CHANNELS, *values.shape[1:]).transpose(0, 1).reshape(-1, *values.shape[1:])


def _separate(values: Tensor, hidden: int) -> Tensor:
    """Undo `_interleave`."""
    gates = values.reshape(-1, _GATES, _CHANNELS, *values.shape[1:]).transpose(0, 1)
    return gates.reshape(_GATES, -1, *values.shape[1:])[:, :hidden].reshape(-1, *values.shape[1:])


def _bytes(*parts: Tensor) -> Tensor:
    return torch.cat([part.contiguous().reshape(-1).view(torch.uint8) for part in parts])


def _padded(values: Tensor, count: int) -> Tensor:
    return torch.cat([values, values.new_zeros(count - len(values))])


def _up(value: int, to: int) -> int:
    return (value + to - 1) // to * to
