"""Every kind of entry of a quantized state dict comes back bit for bit from plain tensors."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.ao import quantization
from torch.ao.nn.quantized import EmbeddingBag

from storage.errors import QuantizationError
from tasks.quantize.converted import flatten_state, load_flat_state
from tasks.quantize.engine import quantized_engine, without_deprecations

sizes = st.integers(1, 5)
shapes = st.lists(sizes, min_size=1, max_size=4)
dynamic_qconfigs = ["default_dynamic_qconfig", "per_channel_dynamic_qconfig", "float16_dynamic_qconfig"]


@pytest.fixture(autouse=True)
def _x86() -> Iterator[None]:
    with quantized_engine("x86"), without_deprecations():
        yield


class Holder(nn.Module):
    """Has the entry ``value`` in its state dict."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value

    def _save_to_state_dict(self, destination: dict[str, object], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}value"] = self.value

    def _load_from_state_dict(self, state_dict: dict[str, object], prefix: str, *_: object) -> None:
        self.value = state_dict[f"{prefix}value"]


def put_into(other: object, value: object) -> object:
    """What becomes of a value that goes through a file's bytes into a module that has another one like it."""
    holder = Holder(other)
    load_flat_state(holder, load(save(flatten_state(Holder(value).state_dict()))))
    return holder.value


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.ScriptObject):
        return isinstance(right, torch.ScriptObject) and same(left.__getstate__(), right.__getstate__())
    if isinstance(left, tuple | list):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Tensor):
        return same_tensor(left, right)
    return type(left) is type(right) and bool(left == right)


def same_tensor(left: Tensor, right: Tensor) -> bool:
    if (left.dtype, left.shape, left.is_quantized) != (right.dtype, right.shape, right.is_quantized):
        return False
    if not left.is_quantized:
        return torch.equal(left, right)
    if left.qscheme() != right.qscheme() or not torch.equal(left.int_repr(), right.int_repr()):
        return False
    if left.qscheme() == torch.per_tensor_affine:
        return (left.q_scale(), left.q_zero_point()) == (right.q_scale(), right.q_zero_point())
    return (
        left.q_per_channel_axis() == right.q_per_channel_axis()
        and same_tensor(left.q_per_channel_scales(), right.q_per_channel_scales())
        and same_tensor(left.q_per_channel_zero_points(), right.q_per_channel_zero_points())
    )


@given(
    shapes,
    st.sampled_from([torch.qint8, torch.quint8, torch.qint32]),
    st.floats(1e-6, 1e3),
    st.integers(0, 127),
)
def test_tensors_quantized_per_tensor(shape: list[int], dtype: torch.dtype, scale: float, zero_point: int) -> None:
    value = torch.quantize_per_tensor(torch.randn(shape), scale, zero_point, dtype)
    assert same(put_into(torch.quantize_per_tensor(torch.zeros(shape), 1, 0, dtype), value), value)


@given(shapes, st.sampled_from([torch.qint8, torch.quint8]), st.data())
def test_tensors_quantized_per_channel(shape: list[int], dtype: torch.dtype, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    channels = shape[axis]
    scales, zero_points = torch.rand(channels, dtype=torch.float64) + 1e-3, torch.randint(0, 100, (channels,))
    value = torch.quantize_per_channel(torch.randn(shape), scales, zero_points, axis, dtype)
    other = torch.quantize_per_channel(torch.zeros(shape), torch.ones(channels), torch.zeros(channels), axis, dtype)
    assert same(put_into(other, value), value)


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False),
    st.sampled_from([torch.qint8, torch.float16, torch.quint4x2]), sizes.map(torch.rand),
)  # fmt: skip


def emptied(value: object) -> object:
    if isinstance(value, tuple | list):
        return type(value)(map(emptied, value))
    return torch.zeros(1) if isinstance(value, Tensor) else value


@given(st.recursive(leaves, lambda inner: st.one_of(st.lists(inner), st.lists(inner).map(tuple)), max_leaves=8))
def test_tuples_and_lists_around_tensors_and_what_follows_from_the_recipe(value: object) -> None:
    assert same(put_into(emptied(value), value), value)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([nn.LSTM, nn.GRU]), st.integers(1, 2), st.booleans(), st.sampled_from(dynamic_qconfigs))
def test_recurrent_layers(kind: type[nn.RNNBase], layers: int, bidirectional: bool, qconfig: str) -> None:
    def converted() -> nn.Module:
        model = nn.Sequential(kind(3, 4, layers, bidirectional=bidirectional))
        return quantization.quantize_dynamic(model.eval(), {"0": getattr(quantization, qconfig)})

    assert_rebuilt(converted(), converted(), torch.randn(5, 2, 3))


@pytest.mark.parametrize("qconfig", dynamic_qconfigs)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.slow
def test_linear_layers(qconfig: str, bias: bool) -> None:
    def converted() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.ReLU(), nn.Linear(4, 2, bias=bias))
        spec = dict.fromkeys(("0", "2"), getattr(quantization, qconfig))
        return quantization.quantize_dynamic(model.eval(), spec)

    assert_rebuilt(converted(), converted(), torch.randn(5, 3))


def assert_rebuilt(original: nn.Module, other: nn.Module, inputs: Tensor) -> None:
    """Put `original`'s state into `other`, by way of plain tensors."""
    load_flat_state(other, load(save(flatten_state(original.state_dict()))))
    with torch.no_grad():
        assert same(other(inputs), original(inputs))
    assert same(list(other.state_dict().values()), list(original.state_dict().values()))


@pytest.mark.slow
def test_tied_weights_are_stored_though_they_share_memory() -> None:
    weight = torch.rand(3, 2)
    tensors = load(save(flatten_state({"a": weight, "b": weight, "c": weight.t()})))
    assert same([tensors[name] for name in "abc"], [weight, weight, weight.t()])


def four_bits() -> Tensor:
    return torch.quantize_per_channel(torch.rand(2, 4), torch.rand(2) + 0.1, torch.rand(2), 0, torch.quint4x2)


@pytest.mark.parametrize(
    "make",
    [lambda: {"a": 1}, object, lambda: print, four_bits, lambda: EmbeddingBag(6, 4)._packed_params._packed_weight],
)
@pytest.mark.slow
def test_an_entry_that_cannot_be_stored_is_named(make: Callable[[], object]) -> None:
    with pytest.raises(QuantizationError, match=r"inner\.value"):
        flatten_state({"inner.value": make()})


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
