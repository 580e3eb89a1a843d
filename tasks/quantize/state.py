"""Quantized state dicts as plain tensors and JSON, and back, bit for bit and without a pickle.

A quantized state dict holds what neither safetensors nor ``torch.load(weights_only=True)`` takes: quantized tensors,
data types, tuples, and packed parameters (script objects). Each is taken apart into plain tensors, which go to
safetensors, and a description of how they belong together, which goes to JSON.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from storage.errors import QuantizationError
from tasks.quantize.packed import pack, unpack

Node = dict[str, Any]


def flatten_state(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Node]]:
    """Take a state dict apart.

    Returns
    -------
    tuple
        Plain contiguous tensors by name, sharing no memory with each other, and per entry of `state` a JSON value.

    Raises
    ------
    QuantizationError
        An entry has a type that cannot be stored.
    """
    tensors: dict[str, Tensor] = {}
    nodes = {name: _describe(value, name, tensors) for name, value in state.items()}
    return tensors, nodes


def restore_state(
    tensors: Mapping[str, Tensor], nodes: Mapping[str, Node], versions: Mapping[str, int]
) -> dict[str, Any]:
    """Put a state dict together again; packed parameters are packed for the engine that is set now."""
    state: OrderedDict[str, Any] = OrderedDict((name, _rebuild(node, tensors)) for name, node in nodes.items())
    # Where torch keeps and looks for the versions: as an attribute of the dict.
    state._metadata = {module: {"version": version} for module, version in versions.items()}  # type: ignore[attr-defined]
    return state


def versions_of(state: Mapping[str, Any]) -> dict[str, int]:
    """The version of each module's layout in a state dict, without which quantized modules read it as their oldest."""
    metadata = getattr(state, "_metadata", {})
    return {module: entry["version"] for module, entry in metadata.items() if entry.get("version") is not None}


def _describe(value: Any, name: str, tensors: dict[str, Tensor]) -> Node:
    if isinstance(value, Tensor):
        return _describe_quantized(value, name, tensors) if value.is_quantized else _keep(value, name, tensors)
    if isinstance(value, torch.ScriptObject):
        kind, parts = unpack(value, name)
        return {"kind": "packed", "class": kind, "parts": _describe(parts, name, tensors)}
    if isinstance(value, torch.dtype):
        return {"kind": "dtype", "value": str(value).removeprefix("torch.")}
    if isinstance(value, tuple | list):
        items = [_describe(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
        return {"kind": "tuple" if isinstance(value, tuple) else "list", "items": items}
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return {"kind": "value", "value": value}
    raise QuantizationError(
        f'The state entry "{name}" has the type {type(value).__name__}, which cannot be stored.',
        hint="Exclude the module that holds it from the recipe.",
    )


def _keep(value: Tensor, name: str, tensors: dict[str, Tensor]) -> Node:
    # Cloned, since safetensors refuses tensors that share memory, as tied weights do.
    tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
    return {"kind": "tensor", "name": name}


def _describe_quantized(value: Tensor, name: str, tensors: dict[str, Tensor]) -> Node:
    # Two 4-bit values lie in each byte, and `int_repr` drops bytes of rows of an odd width.
    values = _bytes_of(value.contiguous()) if value.dtype == torch.quint4x2 else value.int_repr()
    node: Node = {
        "kind": "quantized",
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "values": _keep(values, f"{name}.values", tensors)["name"],
    }
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return node | {"scale": value.q_scale(), "zero_point": value.q_zero_point()}
    _keep(value.q_per_channel_scales(), f"{name}.scales", tensors)
    _keep(value.q_per_channel_zero_points(), f"{name}.zero_points", tensors)
    return node | {
        "axis": value.q_per_channel_axis(),
        "scales": f"{name}.scales",
        "zero_points": f"{name}.zero_points",
    }


def _rebuild(node: Node, tensors: Mapping[str, Tensor]) -> Any:
    return _REBUILDERS[node["kind"]](node, tensors)


def _rebuild_quantized(node: Node, tensors: Mapping[str, Tensor]) -> Tensor:
    values = tensors[node["values"]]
    if "axis" not in node:
        return torch._make_per_tensor_quantized_tensor(values, node["scale"], node["zero_point"])
    scales, zero_points, axis = tensors[node["scales"]], tensors[node["zero_points"]], node["axis"]
    if node["dtype"] != "quint4x2":
        return torch._make_per_channel_quantized_tensor(values, scales, zero_points, axis)
    # torch has no constructor from packed bytes: fill the memory of an empty tensor.
    empty = torch._empty_per_channel_affine_quantized(
        node["shape"], scales=scales, zero_points=zero_points, axis=axis, dtype=torch.quint4x2
    )
    _bytes_of(empty).copy_(values)
    return empty


def _bytes_of(value: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())


_REBUILDERS: dict[str, Callable[[Node, Mapping[str, Tensor]], Any]] = {
    "tensor": lambda node, tensors: tensors[node["name"]],
    "quantized": _rebuild_quantized,
    "packed": lambda node, tensors: pack(node["class"], _rebuild(node["parts"], tensors)),
    "dtype": lambda node, _: getattr(torch, node["value"]),
    "tuple": lambda node, tensors: tuple(_rebuild(item, tensors) for item in node["items"]),
    "list": lambda node, tensors: [_rebuild(item, tensors) for item in node["items"]],
    "value": lambda node, _: node["value"],
}
