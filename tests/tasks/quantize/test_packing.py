"""Packed weights come back as they were."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tasks.quantize.packing import (
    LstmLayer,
    QuantizedMatrix,
    pack_linear,
    pack_lstm,
    packed_linear_bytes,
    packed_lstm_bytes,
    unpack_linear,
    unpack_lstm,
)

sizes = st.integers(1, 140)


def matrix(rows: int, width: int) -> QuantizedMatrix:
    values = torch.arange(rows * width).reshape(rows, width) * 7 % 255 - 127
    return QuantizedMatrix(values.to(torch.int8), torch.rand(rows, generator=torch.Generator().manual_seed(rows)))


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


@given(sizes, sizes)
@pytest.mark.slow
def test_a_linear_layer_comes_back(outputs: int, inputs: int) -> None:
    given_matrix, bias = matrix(outputs, inputs), torch.arange(outputs).float()
    packed = pack_linear(given_matrix, bias)
    assert packed.shape == (packed_linear_bytes(outputs, inputs),)
    found, found_bias = unpack_linear(packed, outputs, inputs)
    assert same(found.values, given_matrix.values)
    assert same(found.scale, given_matrix.scale)
    assert same(found_bias, bias)


@given(st.integers(1, 4), sizes, st.integers(1, 70))
@pytest.mark.slow
def test_an_lstm_comes_back(count: int, inputs: int, hidden: int) -> None:
    layers = [
        LstmLayer(
            matrix(4 * hidden, hidden if number else inputs),
            matrix(4 * hidden, hidden),
            torch.arange(4 * hidden).float() + number,
        )
        for number in range(count)
    ]
    packed = pack_lstm(layers)
    assert packed.shape == (packed_lstm_bytes(count, inputs, hidden),)
    for given_layer, found in zip(layers, unpack_lstm(packed, count, inputs, hidden), strict=True):
        assert same(found.bias, given_layer.bias)
        for one, other in ((found.input, given_layer.input), (found.recurrent, given_layer.recurrent)):
            assert same(one.values, other.values)
            assert same(one.scale, other.scale)
