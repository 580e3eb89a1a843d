"""Convert quantized state dicts to plain tensors and back, bit for bit and without pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import ScriptObject, Tensor, nn

from storage.errors import QuantizationError

# Values of these types are not stored, because the recipe determines the values.
_STRUCTURE = (type(None), bool, int, float, str, torch.dtype)
_ops = torch.ops.quantized

Parts = tuple[object, ...]


def flatten_state(state: Mapping[str, object]) -> dict[str, Tensor]:
    """Return a state dict's tensors by name, as plain, contiguous tensors without shared memory."""
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        _flatten(value, name, tensors)
    return tensors


def load_flat_state(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load a flattened state dict into a module, and pack the parameters for the current quantized engine."""
    # Do not copy the state dict, because a copy would lose `_metadata`, which contains the modules' layout versions.
    state = module.state_dict()
    for name, value in list(state.items()):
        state[name] = _rebuild(value, name, tensors)
    module.load_state_dict(state)


def _flatten(value: object, name: str, tensors: dict[str, Tensor]) -> None:
    match value:
        case Tensor(is_quantized=False):
            # Clone the tensor, because safetensors rejects tensors that share memory, such as tied weights.
            tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
        case Tensor() if value.dtype != torch.quint4x2:
            # A per-tensor scale is a scalar; per-channel scales are a vector.
            if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
                scales = torch.tensor(value.q_scale(), dtype=torch.float64)
                zero_points = torch.tensor(value.q_zero_point())
            else:
                scales, zero_points = value.q_per_channel_scales().clone(), value.q_per_channel_zero_points().clone()
            tensors |= {f"{name}.values": value.int_repr().contiguous(), f"{name}.scales": scales}
            tensors[f"{name}.zero_points"] = zero_points
        case tuple() | list():
            for index, item in enumerate(value):
                _flatten(item, f"{name}.{index}", tensors)
        case ScriptObject() if _class_of(value) in _PACKINGS:
            unpack, _ = _PACKINGS[_class_of(value)]
            _flatten(unpack(value), name, tensors)
        case _ if not isinstance(value, _STRUCTURE):
            kind = _class_of(value) if isinstance(value, ScriptObject) else type(value).__name__
            raise QuantizationError(
                f'The state dict entry "{name}" has the type {kind}, which nightquant cannot store.'
            )


def _rebuild(like: object, name: str, tensors: Mapping[str, Tensor]) -> object:
    """Rebuild the state dict's entry `name` from `tensors`; `like` is the entry of the same name in a new module."""
    match like:
        case Tensor(is_quantized=False):
            # Only QNNPACK packs a bias (all zeros) for a layer without a bias.
            is_missing_bias = name not in tensors and torch.backends.quantized.engine == "qnnpack" and not like.any()
            return like if is_missing_bias else tensors[name]
        case Tensor():
            values, scales, zero_points = (tensors[f"{name}.{part}"] for part in ("values", "scales", "zero_points"))
            if scales.dim() == 0:
                return torch._make_per_tensor_quantized_tensor(values, float(scales), int(zero_points))
            return torch._make_per_channel_quantized_tensor(values, scales, zero_points, like.q_per_channel_axis())
        case tuple() | list():
            return type(like)(_rebuild(item, f"{name}.{index}", tensors) for index, item in enumerate(like))
        case ScriptObject():
            unpack, pack = _PACKINGS[_class_of(like)]
            return pack(*(_rebuild(part, f"{name}.{index}", tensors) for index, part in enumerate(unpack(like))))
    return like


def _class_of(packed: ScriptObject) -> str:
    return str(packed._type().qualified_name()).rpartition(".")[2]


def _unpack_state(packed: ScriptObject) -> Parts:
    state, _ = cast(tuple[Parts, object], packed.__getstate__())
    return tuple(state)


def _pack_linear(weight: Tensor, bias: Tensor | None) -> object:
    # Only weights packed as float16 are unpacked to float.
    return _ops.linear_prepack(weight, bias) if weight.is_quantized else _ops.linear_prepack_fp16(weight, bias)


def _pack_cell(
    kind: str, tensors: list[Tensor], scales: list[float], integers: list[int], weights: list[ScriptObject]
) -> object:
    if kind == "quantized_fp16":
        return _ops.make_quantized_cell_params_fp16(*weights)
    (reduce_range,) = integers
    # Share the biases with the packed weights, because a file would otherwise contain each bias twice.
    biases = [_unpack_state(weight)[1] for weight in weights]
    return _ops.make_quantized_cell_params_dynamic(*weights, *biases, bool(reduce_range))


# The functions that unpack and pack each class of packed parameters.
_PACKINGS: dict[str, tuple[Callable[[ScriptObject], Parts], Callable[..., object]]] = {
    "LinearPackedParamsBase": (_unpack_state, _pack_linear),
    "CellParamsBase": (_unpack_state, _pack_cell),
}
