"""Quantized state dicts as plain tensors and JSON, and back, bit for bit and without a pickle.

A quantized state dict holds what neither safetensors nor ``torch.load(weights_only=True)`` takes: quantized tensors,
data types, tuples, and packed parameters (script objects: weights in an engine's own layout, which only torch's
operators can read and make). Each is taken apart into plain tensors, which go to safetensors, and a description of how
they belong together, which goes to JSON.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import ScriptObject, Tensor

from storage.errors import QuantizationError
from tasks.refs import Frozen

_ops = torch.ops.quantized

Parts = tuple[object, ...]


class Node(Frozen):
    """How one value is put together again.

    Attributes
    ----------
    kind
        Of the value; ``value`` is one that JSON has.
    name
        Where its tensors are (``<name>.values``, ``<name>.scales`` and ``<name>.zero_points`` of a quantized one), or
        the name of the data type or of the packed parameters' class.
    axis
        Of a quantized tensor's scales, None where there is one scale for the whole tensor.
    items
        Of a list or tuple, or the parts of packed parameters.
    """

    kind: Literal["value", "tensor", "quantized", "packed", "dtype", "tuple", "list"]
    name: str = ""
    axis: int | None = None
    items: tuple[Node, ...] = ()
    value: bool | int | float | str | None = None


class StateLayout(Frozen):
    """A state dict without its tensors: its entries, and the version of each module's own layout.

    Without the versions, quantized modules would read their entries as of the oldest one.
    """

    entries: dict[str, Node]
    versions: dict[str, int]


@dataclass(frozen=True)
class _Packing:
    """How one class of packed parameters comes apart and together; `unpack` and `pack` are each other's inverse."""

    unpack: Callable[[ScriptObject], Parts]
    pack: Callable[..., object]


def flatten_state(state: Mapping[str, object]) -> tuple[dict[str, Tensor], StateLayout]:
    """Take a state dict apart.

    Returns
    -------
    tuple
        Plain contiguous tensors by name, sharing no memory with each other, and how they belong together.

    Raises
    ------
    QuantizationError
        An entry has a type that cannot be stored.
    """
    tensors: dict[str, Tensor] = {}
    entries = {name: _describe(value, name, tensors) for name, value in state.items()}
    # Where torch keeps and looks for the versions: as an attribute of the dict.
    metadata: Mapping[str, Mapping[str, int | None]] = getattr(state, "_metadata", {})
    found = {module: entry.get("version") for module, entry in metadata.items()}
    versions = {module: version for module, version in found.items() if version is not None}
    return tensors, StateLayout(entries=entries, versions=versions)


def restore_state(tensors: Mapping[str, Tensor], layout: StateLayout) -> dict[str, object]:
    """Put a state dict together again; parameters are packed for the engine that is set now."""
    state = OrderedDict((name, _rebuild(node, tensors)) for name, node in layout.entries.items())
    versions = {module: {"version": version} for module, version in layout.versions.items()}
    state._metadata = versions  # type: ignore[attr-defined]
    return state


def _describe(value: object, name: str, tensors: dict[str, Tensor]) -> Node:
    if isinstance(value, Tensor):
        return _describe_tensor(value, name, tensors)
    if isinstance(value, torch.dtype):
        return Node(kind="dtype", name=str(value).removeprefix("torch."))
    if isinstance(value, tuple | list):
        kind: Literal["tuple", "list"] = "tuple" if isinstance(value, tuple) else "list"
        return Node(kind=kind, items=_describe_all(value, name, tensors))
    if isinstance(value, ScriptObject):
        packed = str(value._type().qualified_name()).rpartition(".")[2]
        if packed not in _PACKINGS:
            raise _not_storable(name, f"holds packed parameters of the class {packed}")
        return Node(kind="packed", name=packed, items=_describe_all(_PACKINGS[packed].unpack(value), name, tensors))
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return Node(kind="value", value=value)
    raise _not_storable(name, f"has the type {type(value).__name__}")


def _describe_all(values: Parts | list[object], name: str, tensors: dict[str, Tensor]) -> tuple[Node, ...]:
    return tuple(_describe(value, f"{name}.{index}", tensors) for index, value in enumerate(values))


def _describe_tensor(value: Tensor, name: str, tensors: dict[str, Tensor]) -> Node:
    if not value.is_quantized:
        # Cloned, since safetensors refuses tensors that share memory, as tied weights do.
        tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
        return Node(kind="tensor", name=name)
    if value.dtype == torch.quint4x2:
        raise _not_storable(name, "holds two values a byte")
    tensors[f"{name}.values"] = value.int_repr().contiguous()
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        tensors[f"{name}.scales"] = torch.tensor(value.q_scale(), dtype=torch.float64)
        tensors[f"{name}.zero_points"] = torch.tensor(value.q_zero_point())
        return Node(kind="quantized", name=name)
    tensors[f"{name}.scales"] = value.q_per_channel_scales().clone()
    tensors[f"{name}.zero_points"] = value.q_per_channel_zero_points().clone()
    return Node(kind="quantized", name=name, axis=value.q_per_channel_axis())


def _not_storable(name: str, what: str) -> QuantizationError:
    return QuantizationError(
        f'The state entry "{name}" {what}, which cannot be stored.',
        hint="Exclude the module that holds it from the recipe.",
    )


def _rebuild(node: Node, tensors: Mapping[str, Tensor]) -> object:
    items = [_rebuild(item, tensors) for item in node.items]
    match node.kind:
        case "tensor":
            return tensors[node.name]
        case "quantized":
            return _rebuild_quantized(node, tensors)
        case "packed":
            return _PACKINGS[node.name].pack(*items)
        case "dtype":
            return getattr(torch, node.name)
        case "tuple":
            return tuple(items)
        case "list":
            return items
        case "value":
            return node.value


def _rebuild_quantized(node: Node, tensors: Mapping[str, Tensor]) -> Tensor:
    values, scales, zero_points = (tensors[f"{node.name}.{part}"] for part in ("values", "scales", "zero_points"))
    if node.axis is None:
        return torch._make_per_tensor_quantized_tensor(values, float(scales), int(zero_points))
    return torch._make_per_channel_quantized_tensor(values, scales, zero_points, node.axis)


def _unpack_state(packed: ScriptObject) -> Parts:
    state, _ = cast(tuple[Parts, object], packed.__getstate__())
    return tuple(state)


def _pack_linear(weight: Tensor, bias: Tensor | None) -> object:
    # Float weights come out of float16 packing only.
    return _ops.linear_prepack(weight, bias) if weight.is_quantized else _ops.linear_prepack_fp16(weight, bias)


def _unpack_convolution(packed: ScriptObject) -> Parts:
    geometry = (_ops.conv2d_stride, _ops.conv2d_padding, _ops.conv2d_dilation)
    return (*_ops.conv2d_unpack(packed), *(list(part(packed)) for part in geometry), _ops.conv2d_groups(packed))


def _pack_cell(
    kind: str, tensors: list[Tensor], scales: list[float], integers: list[int], weights: list[ScriptObject]
) -> object:
    if kind == "quantized_fp16":
        return _ops.make_quantized_cell_params_fp16(*weights)
    (reduce_range,) = integers
    return _ops.make_quantized_cell_params_dynamic(*weights, *tensors, bool(reduce_range))


_PACKINGS = {
    "LinearPackedParamsBase": _Packing(_unpack_state, _pack_linear),
    "CellParamsBase": _Packing(_unpack_state, _pack_cell),
    "Conv2dPackedParamsBase": _Packing(_unpack_convolution, _ops.conv2d_prepack),
}
