"""Quantization methods: how a float model becomes a quantized one. One module and one line here each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.registry import Registry

if TYPE_CHECKING:
    from tasks.quantize.base import Method
    from tasks.workload.recipe import Recipe

METHODS: Registry[Method[Recipe]] = Registry(
    "quantization method",
    {
        "none": "tasks.quantize.methods.float:Float",
        "dynamic": "tasks.quantize.methods.dynamic:Dynamic",
        "dynamic-per-row": "tasks.quantize.methods.dynamic_per_row:DynamicPerRow",
        "static": "tasks.quantize.methods.static:Static",
        "qat": "tasks.quantize.methods.qat:Qat",
        "cast": "tasks.quantize.methods.cast:Cast",
    },
)
