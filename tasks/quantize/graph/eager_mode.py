"""Eager mode: fuse, set borders, attach observers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.ao.quantization import QConfig, prepare, prepare_qat

from storage.errors import QuantizationError
from tasks.quantize.graph.borders import FloatInside, QuantizedInside, remove_stubs, replace_module
from tasks.quantize.graph.fuse import fuse_chains
from tasks.quantize.graph.observers import qconfig_for
from tasks.quantize.graph.plan import Plan
from tasks.quantize.methods.qat import QatRecipe
from tasks.quantize.methods.static import StaticRecipe


def fused(model: nn.Module, plan: Plan, *, is_qat: bool) -> nn.Module:
    """The float model with its chains fused, in place; in training mode for quantization-aware training."""
    model.train(is_qat)
    if plan.own_fusing:
        _fuse_by_itself(model, is_qat)
    else:
        fuse_chains(model, plan.chains, is_qat=is_qat)
    return model


def _fuse_by_itself(model: nn.Module, is_qat: bool) -> None:
    """Call `fuse_model`: torchvision's protocol for quantizable models, or the older one without `is_qat`."""
    fuse: Any = model.fuse_model
    parameters = inspect.signature(fuse).parameters
    if "is_qat" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        fuse(is_qat=is_qat)
        return
    # It folds batch norms away, which torch only does in evaluation mode; training goes on without them.
    model.eval()
    fuse()
    model.train(is_qat)


def observed(
    model: nn.Module, plan: Plan, recipe: StaticRecipe | QatRecipe, example_inputs: Mapping[str, torch.Tensor]
) -> nn.Module:
    """Fuse a float model and attach observers (static) or fake quantization (qat).

    Raises
    ------
    QuantizationError
        An excluded module was fused into a neighbour by the model's own `fuse_model`, or is only called by a method.
    """
    is_qat = recipe.method == "qat"
    model = fused(model, plan, is_qat=is_qat)
    qconfig = qconfig_for(recipe)
    _keep_embeddings_float(model)
    for path in plan.excluded:
        _keep_float(model, path)
    for path in plan.outside:
        set_qconfig(model.get_submodule(path), None)
    if plan.borders == "around":
        remove_stubs_outside_kept(model)
        model = QuantizedInside(model, example_inputs.values()).train(is_qat)
    set_qconfig(model, qconfig)
    attach = prepare_qat if is_qat else prepare
    prepared: nn.Module = attach(model, inplace=True)
    return prepared


def set_qconfig(module: nn.Module, qconfig: QConfig | None) -> None:
    """Attach what eager mode reads from the attribute ``qconfig``; None keeps the module float."""
    module.qconfig = qconfig  # type: ignore[assignment]


def remove_stubs_outside_kept(model: nn.Module) -> None:
    """Remove the model's own stubs, but not those around modules that stay float."""
    kept = [module for module in model.modules() if isinstance(module, FloatInside)]
    borders = [(module, module.dequant, module.quant) for module in kept]
    remove_stubs(model)
    for module, dequant, quant in borders:
        module.dequant, module.quant = dequant, quant


def _keep_embeddings_float(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            set_qconfig(module, None)


def _keep_float(model: nn.Module, path: str) -> None:
    module = model.get_submodule(path)
    if isinstance(module, nn.Identity) or hasattr(module, "activation_post_process"):
        raise QuantizationError(
            f"{path} cannot be kept float by itself: it was fused into a neighbour or is called by its methods.",
            hint='Name the module before it, or the block that holds it, in exclude, or use flow = "fx".',
        )
    for inner in module.modules():
        set_qconfig(inner, None)
    replace_module(model, path, FloatInside(module))
