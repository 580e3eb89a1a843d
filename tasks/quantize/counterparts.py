"""Pairs of a quantized module and the float one that computes the same, to compare them on equal input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from tasks.quantize.graph import eager_mode as eager
from tasks.quantize.graph import fx
from tasks.quantize.graph.attribution import has_quantized_kernel, modules_by_float_path
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.methods.qat import QatRecipe
from tasks.quantize.methods.static import StaticRecipe
from tasks.workload.recipe import Recipe


@dataclass(frozen=True)
class Pair:
    """``path`` is the module's in the float model; a fused one goes by the path of its first module."""

    path: str
    quantized: nn.Module
    float: nn.Module


def pairs(
    model: nn.Module, converted: nn.Module, recipe: Recipe, flow: str, example_inputs: Mapping[str, torch.Tensor]
) -> tuple[Pair, ...]:
    """Every quantized module with weights, in the model's order.

    Parameters
    ----------
    model
        The float model with its checkpoint's weights; it is fused in place where the recipe's method fuses.
    converted, flow
        What the recipe made of it, and the flow that it took.
    """
    if isinstance(recipe, StaticRecipe | QatRecipe):
        taken = recipe.model_copy(update={"flow": flow})
        plan = make_plan(model, taken, example_inputs)
        model = fx.fused(model) if flow == "fx" else eager.fused(model, plan, is_qat=False)
    floats = dict(model.named_modules())
    return tuple(
        Pair(path, module, floats[path])
        for path, module in modules_by_float_path(converted).items()
        if path in floats and has_quantized_kernel(module) and next(floats[path].parameters(), None) is not None
    )
