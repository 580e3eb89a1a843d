"""FX graph mode: the graph is rewritten, so functional operations are observed and fused like modules."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.ao.quantization.quantize_fx import fuse_fx, prepare_fx, prepare_qat_fx

from tasks.quantize.graph.eager_mode import remove_stubs
from tasks.quantize.graph.observers import mapping_for
from tasks.quantize.graph.padding import pad_by_numbers
from tasks.quantize.graph.plan import Plan
from tasks.quantize.graph.trace import is_leaf, traced_module
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
    inputs, is_qat = tuple(example_inputs.values()), recipe.method == "qat"
    # A graph keeps the branch that ``self.training`` took when it was traced. Functional dropout and auxiliary heads do
    # not stay in it for good where modules that are traced into are in evaluation mode.
    for module in model.train(is_qat).modules():
        module.training = is_qat and is_leaf(module) and not any(True for _ in module.children())
    traced, _ = traced_module(model, plan.excluded, training=is_qat)
    pad_by_numbers(traced, plan.kept)
    return prepare_qat_fx(traced, mapping, inputs).train() if is_qat else prepare_fx(traced, mapping, inputs)


def fuse(model: nn.Module) -> nn.Module:
    """The float model with its chains fused, as a graph module; parameters are shared with `model`."""
    remove_stubs(model)
    traced, _ = traced_module(model.eval())
    return fuse_fx(traced)
