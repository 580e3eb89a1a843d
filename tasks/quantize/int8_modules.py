"""Modules with int8 weights (one scale per output channel) and with activations that are quantized per row.

`Int8Linear` and `Int8Lstm` call the operators in `tasks.quantize.native`. Before packing, a module's state dict
contains plain int8 matrices; `pack` converts these matrices to the kernels' order.

Packed weights are one tensor of bytes. An int8 matrix ``[N, K]`` is padded with zeros to multiples of 16 and 64, and
stored as unsigned bytes ``[N / 16][K / 4][16][4]``. Each byte is a weight plus 128. The bytes of the float32 vectors
``[N]`` follow the matrix. The byte order is the same on every processor.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from tasks.quantize.coverage import ModuleConverter
from tasks.quantize.operators import find_or_compile, operators
from tasks.quantize.spec import Spec
from tasks.values.job import Workspace

_CHANNELS, _FEATURES, _GATES = 16, 64, 4
_IN_FRONT = 48  # must equal ``kInFront`` in native/operators.cpp
# Products of int8 and uint8 values are summed in int32, and the sum must not overflow.
MOST_FEATURES = (1 << 31) // (127 * 255) // _FEATURES * _FEATURES


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a float matrix as int8 values from -127 to 127 [N, K], and a scale per row [N] (0 for a row of zeros)."""
    weight = weight.detach().float()
    scale = weight.abs().amax(1) / 127
    values = torch.round(weight / torch.where(scale > 0, scale, 1.0).unsqueeze(1)).clamp(-127, 127)
    return values.to(torch.int8), scale


class _Packable(nn.Module):
    """A module that has plain buffers before packing, and only the `packed` buffer afterwards."""

    packed: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("packed", None, persistent=False)

    @abstractmethod
    def in_kernels_order(self) -> Tensor:
        """Return the plain buffers in the kernels' order."""

    def pack(self) -> Tensor:
        """Replace the plain weights with packed weights; afterwards, the state dict is empty."""
        if self.packed is None:
            self.packed = self.in_kernels_order()
            self._buffers = {"packed": self.packed}
        return self.packed


def align_for_aot_inductor(model: nn.Module) -> None:
    """Add padding before a model's packed weights, so that AOTInductor aligns them with cache lines."""
    for module in model.modules():
        if isinstance(module, _Packable):
            packed = module.pack()
            module.packed = torch.cat([packed.new_zeros(_IN_FRONT), packed])


class Int8Linear(_Packable):
    """A quantized linear layer with the buffers ``weight`` (int8 [N, K]), ``scale`` and ``bias`` (float32 [N])."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features = linear.out_features
        values, scale = quantize_rows(linear.weight)
        self.register_buffer("weight", values)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", _bias(linear.bias, linear.out_features))
        self._operator = operators().linear.default

    def forward(self, inputs: Tensor) -> Tensor:
        """Return float32 outputs [..., N] for float32 inputs [..., K]."""
        packed = self.in_kernels_order() if self.packed is None else self.packed
        outputs: Tensor = self._operator(inputs, packed, self.out_features)
        return outputs

    def in_kernels_order(self) -> Tensor:
        """Return the matrix, scale and bias in the kernels' order."""
        channels = _up(self.out_features, _CHANNELS)
        padded = (torch.cat([values, values.new_zeros(channels - len(values))]) for values in (self.scale, self.bias))
        return _bytes(_blocks(self.weight), *padded)


class Int8Lstm(_Packable):
    """A quantized, unidirectional LSTM without projections, with the interface of `torch.nn.LSTM`.

    Each layer ``n`` has the int8 matrices ``weight_ih_ln`` [4H, I] and ``weight_hh_ln`` [4H, H], with gates in torch's
    order. The float32 vectors [4H] are ``scale_ih_ln``, ``scale_hh_ln`` and ``bias_ln`` (the sum of both biases).
    """

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.hidden_size, self.num_layers, self.batch_first = lstm.hidden_size, lstm.num_layers, lstm.batch_first
        for layer in range(lstm.num_layers):
            for side in ("ih", "hh"):
                values, scale = quantize_rows(getattr(lstm, f"weight_{side}_l{layer}"))
                self.register_buffer(f"weight_{side}_l{layer}", values)
                self.register_buffer(f"scale_{side}_l{layer}", scale)
            biases = (getattr(lstm, f"bias_{side}_l{layer}", None) for side in ("ih", "hh"))
            first, second = (_bias(bias, _GATES * lstm.hidden_size) for bias in biases)
            self.register_buffer(f"bias_l{layer}", first + second)
        self._operator = operators().lstm.default

    def forward(self, inputs: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the outputs and states, as `torch.nn.LSTM` does, for inputs [T, B, I] and states h and c [L, B, H].

        Inputs may also have the shape [T, I] or, if `batch_first` is true, [B, T, I].
        """
        batched = inputs.dim() == 3
        if not batched:
            inputs = inputs.unsqueeze(1)
            hx = hx and (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
        elif self.batch_first:
            inputs = inputs.transpose(0, 1)
        if hx is None:
            zeros = inputs.new_zeros(self.num_layers, inputs.shape[1], self.hidden_size)
            hx = zeros, zeros
        packed = self.in_kernels_order() if self.packed is None else self.packed
        outputs, h, c = self._operator(inputs, *hx, packed)
        if not batched:
            return outputs.squeeze(1), (h.squeeze(1), c.squeeze(1))
        return outputs.transpose(0, 1) if self.batch_first else outputs, (h, c)

    def in_kernels_order(self) -> Tensor:
        """Return each layer's matrices, scales and bias in the kernels' order, which groups the gates of 16 units."""
        parts = []
        for layer in range(self.num_layers):
            names = ("weight_ih", "weight_hh", "scale_ih", "scale_hh", "bias")
            first, second, *floats = (_interleave(self.get_buffer(f"{name}_l{layer}")) for name in names)
            parts += [_blocks(first), _blocks(second), *floats]
        return _bytes(*parts)


class Int8Embedding(nn.Module):
    """A quantized embedding in plain torch, with int8 rows [V, D] and float32 scales [V, 1]."""

    weight: Tensor
    scale: Tensor

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        values, scale = quantize_rows(embedding.weight)
        self.register_buffer("weight", values)
        self.register_buffer("scale", scale.unsqueeze(1))

    def forward(self, indices: Tensor) -> Tensor:
        """Return float32 rows [..., D] for integer indices [...]."""
        return functional.embedding(indices, self.weight) * functional.embedding(indices, self.scale)


class PerRowConverter(ModuleConverter):
    """A converter that replaces float modules with int8 modules."""

    subclass = "may compute something else"

    def lack(self, module: nn.Module, spec: Spec) -> str:
        """Return the reason that there is no kernel for the module, or ``""`` if a kernel exists."""
        match module:
            case nn.LSTM(bidirectional=True):
                return "there is no kernel for bidirectional LSTMs"
            case nn.LSTM() if module.proj_size:
                return "there is no kernel for LSTMs with projections"
        widths = [getattr(module, name, 0) for name in ("in_features", "input_size", "hidden_size")]
        if max(widths) > MOST_FEATURES:
            return f"sums over more than {MOST_FEATURES:,} features do not fit into 32 bits"
        return ""

    def replace(self, model: nn.Module, paths: Collection[str], spec: Spec) -> nn.Module:
        """Quantize the modules."""
        kinds = {nn.Linear: Int8Linear, nn.LSTM: Int8Lstm, nn.Embedding: Int8Embedding}
        for path in paths:
            module = model.get_submodule(path)
            model.set_submodule(path, kinds[type(module)](module))
        return model

    def pack(self, model: nn.Module) -> nn.Module:
        """Pack the weights of linear layers and LSTMs."""
        for module in model.modules():
            if isinstance(module, _Packable):
                module.pack()
        return model

    def library(self, workspace: Workspace) -> Path:
        """Find or compile the operators."""
        return find_or_compile(workspace)


def _bias(bias: Tensor | None, width: int) -> Tensor:
    return torch.zeros(width) if bias is None else bias.detach().float()


def _blocks(values: Tensor) -> Tensor:
    """Add 128 to an int8 matrix [N, K], and reorder the matrix into blocks of 16 channels and 4 features."""
    rows, width = values.shape
    full = torch.zeros(_up(rows, _CHANNELS), _up(width, _FEATURES), dtype=torch.int8)
    full[:rows, :width] = values
    shifted = (full.to(torch.int16) + 128).to(torch.uint8)
    return shifted.reshape(len(full) // _CHANNELS, _CHANNELS, -1, 4).permute(0, 2, 1, 3)


def _interleave(values: Tensor) -> Tensor:
    """Reorder the first axis from [4][H] to [H / 16][4][16]."""
    hidden = len(values) // _GATES
    full = values.new_zeros(_GATES, _up(hidden, _CHANNELS), *values.shape[1:])
    full[:, :hidden] = values.reshape(_GATES, hidden, *values.shape[1:])
    return full.reshape(_GATES, -1, _CHANNELS, *values.shape[1:]).transpose(0, 1).reshape(-1, *values.shape[1:])


def _bytes(*parts: Tensor) -> Tensor:
    return torch.cat([part.contiguous().reshape(-1).view(torch.uint8) for part in parts])


def _up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple
