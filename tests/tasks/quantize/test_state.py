"""Quantized state dicts come back bit for bit from plain tensors."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from zipfile import ZipFile

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.ao import quantization

from storage.errors import QuantizationError
from tasks.quantize.converted import flatten_state, load_flat_state
from tasks.quantize.engine import quantized_engine, without_deprecations

dynamic_qconfigs = ["default_dynamic_qconfig", "per_channel_dynamic_qconfig", "float16_dynamic_qconfig"]


@pytest.fixture(autouse=True)
def _x86() -> Iterator[None]:
    with quantized_engine("x86"), without_deprecations():
        yield


def assert_rebuilt(make: Callable[[], nn.Module], inputs: Tensor) -> None:
    """Put one module's state into another, by way of plain tensors."""
    original, other = make(), make()
    state = flatten_state(original.state_dict())
    load_flat_state(other, load(save(state)))
    with torch.no_grad():
        found, expected = (flatten_state({"outputs": model(inputs)}).values() for model in (other, original))
    assert all(map(torch.equal, found, expected))
    again = flatten_state(other.state_dict())
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([nn.LSTM, nn.GRU]), st.integers(1, 2), st.booleans(), st.sampled_from(dynamic_qconfigs))
def test_recurrent_layers(kind: type[nn.RNNBase], layers: int, bidirectional: bool, qconfig: str) -> None:
    def make() -> nn.Module:
        model = nn.Sequential(kind(3, 4, layers, bidirectional=bidirectional))
        return quantization.quantize_dynamic(model.eval(), {"0": getattr(quantization, qconfig)})

    assert_rebuilt(make, torch.randn(5, 2, 3))


@pytest.mark.parametrize("qconfig", dynamic_qconfigs)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.slow
def test_linear_layers(qconfig: str, bias: bool) -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.ReLU(), nn.Linear(4, 2, bias=bias))
        spec = dict.fromkeys(("0", "2"), getattr(quantization, qconfig))
        return quantization.quantize_dynamic(model.eval(), spec)

    assert_rebuilt(make, torch.randn(5, 3))


def test_tied_weights_are_stored_though_they_share_memory() -> None:
    weight = torch.rand(3, 2)
    tensors = load(save(flatten_state({"a": weight, "b": weight, "c": weight.t()})))
    assert all(map(torch.equal, (tensors[name] for name in "abc"), (weight, weight, weight.t())))


def test_an_entry_that_cannot_be_stored_is_named() -> None:
    with pytest.raises(QuantizationError, match=r"inner\.value"):
        flatten_state({"inner.value": {"a": 1}})


def test_a_restored_cell_shares_its_biases_with_its_weights() -> None:
    def converted() -> nn.Module:
        return quantization.quantize_dynamic(nn.Sequential(nn.LSTM(4, 4)).eval(), {nn.LSTM})

    def storages(lstm: nn.Module) -> int:
        traced = torch.jit.trace(lstm, (torch.rand(2, 1, 4),), check_trace=False)
        torch.jit.save(torch.jit.freeze(traced), file := io.BytesIO())
        return sum("/constants/" in name for name in ZipFile(file).namelist())

    restored = converted()
    load_flat_state(restored, flatten_state((model := converted()).state_dict()))
    assert storages(restored) == storages(model)
