"""Quantized state dicts as plain tensors, and back, bit for bit and without a pickle.

A quantized state dict holds what safetensors does not take: quantized tensors, tuples, data types, and packed
parameters (script objects: weights in an engine's own layout, which only torch's operators can read and make). They are
taken apart into plain tensors. All else follows from the recipe and is found in the module that the tensors are put
into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import ScriptObject, Tensor, nn
from torch.fx import GraphModule

from storage.errors import QuantizationError

_ops = torch.ops.quantized
# Values that follow from the recipe.
_STRUCTURE = (type(None), bool, int, float, str, torch.dtype)

Parts = tuple[object, ...]


@dataclass(frozen=True)
class _Packing:
    """How one class of packed parameters comes apart and together; `unpack` and `pack` are each other's inverse."""

    unpack: Callable[[ScriptObject], Parts]
    pack: Callable[..., object]


def flatten_state(state: Mapping[str, object]) -> dict[str, Tensor]:
    """A state dict's tensors by name: plain, contiguous, and sharing no memory with each other.

    Raises
    ------
    QuantizationError
        An entry has a type that cannot be stored.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        _flatten(value, name, tensors)
    return tensors


def load_flat_state(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put tensors into a module of the same structure; parameters are packed for the engine that is set now."""
    # The versions of the modules' own layouts are an attribute of this dict.
    state = module.state_dict()
    for name, value in list(state.items()):
        rebuilt = _rebuild(value, name, tensors)
        path, _, attribute = name.rpartition(".")
        if isinstance(value, ScriptObject) and isinstance(graph := module.get_submodule(path), GraphModule):
            # Packed for a function that forward calls. torch's own loading takes only those that the root's forward
            # calls, whose names begin with an underscore.
            setattr(graph, attribute, rebuilt)
            del state[name]
        else:
            state[name] = rebuilt
    module.load_state_dict(state)


def _flatten(value: object, name: str, tensors: dict[str, Tensor]) -> None:
    match value:
        case Tensor(is_quantized=False):
            # Cloned, since safetensors refuses tensors that share memory, as tied weights do.
            tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
        case Tensor() if value.dtype != torch.quint4x2:
            scales, zero_points = _quantization(value)
            tensors |= {f"{name}.values": value.int_repr().contiguous(), f"{name}.scales": scales}
            tensors[f"{name}.zero_points"] = zero_points
        case tuple() | list():
            for index, item in enumerate(value):
                _flatten(item, f"{name}.{index}", tensors)
        case ScriptObject() if _class_of(value) in _PACKINGS:
            _flatten(_PACKINGS[_class_of(value)].unpack(value), name, tensors)
        case _ if not isinstance(value, _STRUCTURE):
            kind = _class_of(value) if isinstance(value, ScriptObject) else type(value).__name__
            raise QuantizationError(
                f'The state entry "{name}" has the type {kind}, which cannot be stored.',
                hint="Exclude the module that holds it from the recipe.",
            )


def _rebuild(like: object, name: str, tensors: Mapping[str, Tensor]) -> object:
    """The value of that name, of the kind that another module's is."""
    match like:
        case Tensor(is_quantized=False):
            return like if _is_qnnpacks_own(like, name, tensors) else tensors[name]
        case Tensor():
            values, scales, zero_points = (tensors[f"{name}.{part}"] for part in ("values", "scales", "zero_points"))
            if scales.dim() == 0:
                return torch._make_per_tensor_quantized_tensor(values, float(scales), int(zero_points))
            return torch._make_per_channel_quantized_tensor(values, scales, zero_points, like.q_per_channel_axis())
        case tuple() | list():
            return type(like)(_rebuild(item, f"{name}.{index}", tensors) for index, item in enumerate(like))
        case ScriptObject():
            packing = _PACKINGS[_class_of(like)]
            return packing.pack(
                *(_rebuild(part, f"{name}.{i}", tensors) for i, part in enumerate(packing.unpack(like)))
            )
    return like


def _is_qnnpacks_own(like: Tensor, name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a tensor was not stored because it is the zeros that QNNPACK alone packs where a layer has no bias."""
    return name not in tensors and torch.backends.quantized.engine == "qnnpack" and not like.any()


def _quantization(value: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and zero points: without axes where there is one for the whole tensor, else one for each channel."""
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return torch.tensor(value.q_scale(), dtype=torch.float64), torch.tensor(value.q_zero_point())
    return value.q_per_channel_scales().clone(), value.q_per_channel_zero_points().clone()


def _class_of(packed: ScriptObject) -> str:
    return str(packed._type().qualified_name()).rpartition(".")[2]


def _unpack_state(packed: ScriptObject) -> Parts:
    state, _ = cast(tuple[Parts, object], packed.__getstate__())
    return tuple(state)


def _pack_linear(weight: Tensor, bias: Tensor | None) -> object:
    # Float weights come out of float16 packing only.
    return _ops.linear_prepack(weight, bias) if weight.is_quantized else _ops.linear_prepack_fp16(weight, bias)


def _unpack_convolution(packed: ScriptObject) -> Parts:
    geometry = (_ops.conv2d_stride, _ops.conv2d_padding, _ops.conv2d_dilation)
    return (*_ops.conv2d_unpack(packed), *(list(part(packed)) for part in geometry), _ops.conv2d_groups(packed))


def _unpack_convolution_of_volumes(packed: ScriptObject) -> Parts:
    geometry = (_ops.conv3d_stride, _ops.conv3d_padding, _ops.conv3d_dilation)
    return (*_ops.conv3d_unpack(packed), *(list(part(packed)) for part in geometry), _ops.conv3d_groups(packed))


def _pack_cell(
    kind: str, tensors: list[Tensor], scales: list[float], integers: list[int], weights: list[ScriptObject]
) -> object:
    if kind == "quantized_fp16":
        return _ops.make_quantized_cell_params_fp16(*weights)
    (reduce_range,) = integers
    # The weights' own biases, or a file of the cell would hold each of them twice.
    biases = [_unpack_state(weight)[1] for weight in weights]
    return _ops.make_quantized_cell_params_dynamic(*weights, *biases, bool(reduce_range))


_PACKINGS = {
    "LinearPackedParamsBase": _Packing(_unpack_state, _pack_linear),
    "CellParamsBase": _Packing(_unpack_state, _pack_cell),
    # Of signals, too: they are pictures of one row.
    "Conv2dPackedParamsBase": _Packing(_unpack_convolution, _ops.conv2d_prepack),
    "Conv3dPackedParamsBase": _Packing(_unpack_convolution_of_volumes, _ops.conv3d_prepack),
}
