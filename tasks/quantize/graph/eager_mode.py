"""Eager mode: fuse, set borders between float and quantized values, attach observers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import torch
from torch import nn
from torch.ao import quantization
from torch.ao.quantization import DeQuantStub, QConfig, QuantStub

from storage.errors import QuantizationError
from tasks.quantize.graph.fuse import fuse_chains
from tasks.quantize.graph.observers import qconfig_for
from tasks.quantize.graph.padding import pad_by_numbers
from tasks.quantize.graph.plan import Plan
from tasks.quantize.methods.static import GraphRecipe


class QuantizedInside(nn.Module):
    """A model without stubs of its own, whose floating-point inputs are quantized and whose outputs are dequantized.

    It has one of `example_inputs` per argument; integer tensors pass the border as they are.
    """

    def __init__(self, module: nn.Module, example_inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        # One stub per argument, for each has a range of its own.
        self.quants = nn.ModuleList(
            QuantStub() if tensor.is_floating_point() else nn.Identity() for tensor in example_inputs
        )
        self.module = module
        self.dequant = DeQuantStub()

    def forward(self, *inputs: torch.Tensor) -> object:
        """Call the model between the borders."""
        quantized = [quant(tensor) for quant, tensor in zip(self.quants, inputs, strict=True)]
        return _map_tensors(self.dequant, self.module(*quantized))


class FloatInside(nn.Module):
    """A module that stays float within a quantized model: dequantize, compute, quantize again."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.dequant = DeQuantStub()
        self.module = module
        self.quant = QuantStub()

    def forward(self, *inputs: object, **options: object) -> object:
        """Call the module on dequantized inputs."""
        values = (self.dequant(value) if isinstance(value, torch.Tensor) else value for value in inputs)
        return _map_tensors(self.quant, self.module(*values, **options))


def prepare(model: nn.Module, plan: Plan, recipe: GraphRecipe, example_inputs: Mapping[str, torch.Tensor]) -> nn.Module:
    """Fuse a float model and attach observers (static) or fake quantization (qat).

    Raises
    ------
    QuantizationError
        An excluded module was fused into a neighbour by the model's own `fuse_model`, or is only called by a method.
    """
    is_qat = recipe.method == "qat"
    pad_by_numbers(model, plan.kept)
    model = fuse(model, plan, is_qat=is_qat)
    if plan.borders == "around":
        remove_stubs(model)
    embeddings = (module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    for module in (*embeddings, *map(model.get_submodule, plan.outside)):
        _set_qconfig(module, None)
    for path in plan.excluded:
        _keep_float(model, path)
    if plan.borders == "around":
        model = QuantizedInside(model, example_inputs.values()).train(is_qat)
    _set_qconfig(model, qconfig_for(recipe))
    attach = quantization.prepare_qat if is_qat else quantization.prepare
    prepared: nn.Module = attach(model, inplace=True)
    return prepared


def fuse(model: nn.Module, plan: Plan, *, is_qat: bool) -> nn.Module:
    """The float model with its chains fused, in place; in training mode for quantization-aware training."""
    model.train(is_qat)
    if not plan.own_fusing:
        fuse_chains(model, plan.chains, is_qat=is_qat)
        return model
    # torchvision's protocol for quantizable models, or the older one without `is_qat`.
    fuse_model = cast(Callable[..., None], model.fuse_model)
    parameters = inspect.signature(fuse_model).parameters
    if "is_qat" in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        fuse_model(is_qat=is_qat)
        return model
    # It folds batch norms away, which torch only does in evaluation mode; training goes on without them.
    model.eval()
    fuse_model()
    return model.train(is_qat)


def remove_stubs(model: nn.Module) -> None:
    """Put an Identity in the place of every quant and dequant stub."""
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, QuantStub | DeQuantStub):
            model.set_submodule(path, nn.Identity())


def _keep_float(model: nn.Module, path: str) -> None:
    module = model.get_submodule(path)
    if isinstance(module, nn.Identity) or hasattr(module, "activation_post_process"):
        raise QuantizationError(
            f"{path} cannot be kept float by itself: it was fused into a neighbour or is called by its methods.",
            hint='Name the module before it, or the block that holds it, in exclude, or use graph = "fx".',
        )
    for inner in module.modules():
        _set_qconfig(inner, None)
    model.set_submodule(path, FloatInside(module))


def _set_qconfig(module: nn.Module, qconfig: QConfig | None) -> None:
    """Attach what eager mode reads from the attribute ``qconfig``; None keeps the module float."""
    module.qconfig = qconfig  # type: ignore[assignment]


def _map_tensors(border: Callable[[torch.Tensor], torch.Tensor], output: object) -> object:
    if isinstance(output, tuple | list):
        return tuple(_map_tensors(border, item) for item in output)
    if isinstance(output, torch.Tensor) and (output.is_quantized or output.is_floating_point()):
        return border(output)
    return output
