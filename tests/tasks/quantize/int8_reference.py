"""The arithmetic of per-row quantization in plain torch: what the operators must compute."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tasks.quantize.int8_modules import quantize_rows
from tasks.quantize.operators import operators

SETS = ("scalar", "avx2", "avx512-vnni", "amx")


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    """Let the operators use the kernels of one instruction set."""
    before = os.environ.get("NIGHTQUANT_ISA", "")
    os.environ["NIGHTQUANT_ISA"] = name
    try:
        yield
    finally:
        os.environ["NIGHTQUANT_ISA"] = before


def runs_here(name: str) -> bool:
    """Whether the processor has the instruction set."""
    with instruction_set(name):
        try:
            operators().linear(torch.zeros(1, 1), torch.zeros(16 * (64 + 8), dtype=torch.uint8), 1)
        except RuntimeError:
            return False
    return True


def supported_sets() -> list[str]:
    """The instruction sets that the processor has; the portable kernels are always among them."""
    found = [name for name in SETS if runs_here(name)]
    assert found[0] == "scalar"
    return found


def quantized_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers of -127 to 127 as float32 [R, K], and a scale for each row, float32 [R, 1]."""
    peak = x.abs().amax(-1, keepdim=True)
    # `127 / peak` would multiply by a reciprocal, which is a last digit off for some.
    inverse = torch.where(peak > 1e-30, torch.full_like(peak, 127) / peak, 0.0)
    return torch.round(x * inverse), peak / 127


def linear_of(x: Tensor, matrix: tuple[Tensor, Tensor], bias: Tensor) -> Tensor:
    """A linear layer on float32 [R, K]; sums are integers, which float64 holds without rounding."""
    (values, scale), (weights, weight_scale) = quantized_rows(x), matrix
    sums = (values.double() @ weights.double().T).float()
    return sums * (scale * weight_scale) + bias


def cell_of(x: Tensor, h: Tensor, c: Tensor, lstm: nn.LSTM, layer: int) -> tuple[Tensor, Tensor]:
    """One step of one layer of a float LSTM whose weights are quantized here: the new h and c, float32 [B, H]."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w_ih, w_hh, *biases = (getattr(lstm, f"{name}_l{layer}", None) for name in names)
    assert w_ih is not None
    assert w_hh is not None
    bias = sum((each.detach() for each in biases if each is not None), torch.zeros(len(w_ih)))
    gates = linear_of(h, quantize_rows(w_hh), linear_of(x, quantize_rows(w_ih), bias))
    i, f, g, o = gates.double().chunk(4, -1)
    state = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return (o.sigmoid() * state.tanh()).float(), state.float()
