"""FX graph mode: the graph is rewritten, so functional operations are observed and fused like modules."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.ao.quantization.quantize_fx import fuse_fx, prepare_fx, prepare_qat_fx

from tasks.quantize.graph.eager_mode import remove_stubs
from tasks.quantize.graph.observers import mapping_for
from tasks.quantize.graph.plan import Plan
from tasks.quantize.methods.static import GraphRecipe


class _FloatPReLU(nn.PReLU):
    """One that torch does not know: it quantizes every PReLU between quantized values, observed or not."""


def prepare(model: nn.Module, plan: Plan, recipe: GraphRecipe, example_inputs: Mapping[str, torch.Tensor]) -> nn.Module:
    """Attach observers (static) or fake quantization (qat) to a float model's graph."""
    remove_stubs(model)
    for module in model.modules():
        if type(module) is nn.PReLU:
            module.__class__ = _FloatPReLU
    mapping = mapping_for(recipe)
    for path in sorted(plan.kept):
        mapping.set_module_name(path, None)
    inputs = tuple(example_inputs.values())
    if recipe.method != "qat":
        return prepare_fx(model.eval(), mapping, inputs)
    # A graph keeps the branch that ``self.training`` took when it was traced. Functional dropout and auxiliary heads do
    # not stay in it for good where modules that hold others are in evaluation mode.
    for module in model.train().modules():
        if any(True for _ in module.children()):
            module.training = False
    return prepare_qat_fx(model, mapping, inputs).train()


def fuse(model: nn.Module) -> nn.Module:
    """The float model with its chains fused, as a graph module; parameters are shared with `model`."""
    remove_stubs(model)
    return fuse_fx(model.eval())
