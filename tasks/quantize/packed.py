"""Packed parameters: weights in an engine's own layout, which only torch's operators can read and make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from storage.errors import QuantizationError

_ops = torch.ops.quantized


@dataclass(frozen=True)
class Packing:
    """How one class of packed parameters comes apart and together; `unpack` and `pack` are each other's inverse."""

    unpack: Callable[[Any], tuple[Any, ...]]
    pack: Callable[..., Any]


def unpack(packed: torch.ScriptObject, name: str) -> tuple[str, tuple[Any, ...]]:
    """The short name of the packed object's class, and its parts: tensors, numbers and further packed objects.

    Raises
    ------
    QuantizationError
        The class is not known here.
    """
    kind = str(packed._type().qualified_name()).rpartition(".")[2]
    if kind not in PACKINGS:
        raise QuantizationError(
            f'The state entry "{name}" holds packed parameters of the class {kind}, which cannot be stored.',
            hint="Exclude the module that holds it from the recipe.",
        )
    return kind, PACKINGS[kind].unpack(packed)


def pack(kind: str, parts: tuple[Any, ...]) -> torch.ScriptObject:
    """Pack parts for the quantized engine that is set now."""
    packed: torch.ScriptObject = PACKINGS[kind].pack(*parts)
    return packed


def _unpack_state(packed: Any) -> tuple[Any, ...]:
    state, _ = packed.__getstate__()
    return tuple(state)


def _pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    # Float weights come out of float16 packing only.
    return _ops.linear_prepack(weight, bias) if weight.is_quantized else _ops.linear_prepack_fp16(weight, bias)


def _unpack_convolution(packed: Any) -> tuple[Any, ...]:
    geometry = (_ops.conv2d_stride, _ops.conv2d_padding, _ops.conv2d_dilation)
    return (*_ops.conv2d_unpack(packed), *(list(part(packed)) for part in geometry), _ops.conv2d_groups(packed))


def _pack_cell(
    kind: str, tensors: list[torch.Tensor], scales: list[float], integers: list[int], weights: list[Any]
) -> Any:
    if kind == "quantized_fp16":
        return _ops.make_quantized_cell_params_fp16(*weights)
    (reduce_range,) = integers
    return _ops.make_quantized_cell_params_dynamic(*weights, *tensors, bool(reduce_range))


PACKINGS = {
    "LinearPackedParamsBase": Packing(_unpack_state, _pack_linear),
    "CellParamsBase": Packing(_unpack_state, _pack_cell),
    "Conv2dPackedParamsBase": Packing(_unpack_convolution, _ops.conv2d_prepack),
    "EmbeddingPackedParamsBase": Packing(
        lambda packed: (_ops.embedding_bag_unpack(packed),), _ops.embedding_bag_prepack
    ),
}
