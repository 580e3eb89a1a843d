"""Static quantization and the end of quantization-aware training: observe, calibrate, convert."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import nn
from torch.ao.nn.quantized import ELU
from torch.ao.quantization import convert
from torch.ao.quantization.quantize_fx import convert_fx
from torch.fx import GraphModule
from torch.nn.modules.conv import _ConvNd

from storage.errors import QuantizationError
from tasks.quantize.base import Converted
from tasks.quantize.coverage import Leaf, leaves_of
from tasks.quantize.graph import calibrate, eager_mode, fx, smoke_test
from tasks.quantize.graph.attribution import attribute
from tasks.quantize.graph.plan import Plan, make_plan
from tasks.quantize.graph.smoke_test import try_out
from tasks.quantize.methods.static import GraphRecipe, StaticRecipe
from tasks.quantize.source import ModelSource


def quantize_statically(model: nn.Module, recipe: StaticRecipe, source: ModelSource) -> Converted:
    """Quantize weights and activations to int8 by ranges seen in calibration, in eager or FX graph mode.

    Raises
    ------
    QuantizationError
        The graph mode that the recipe asks for cannot express the model, there is nothing to calibrate with, an
        operation has no quantized kernel, or numbers are not finite.
    """
    calibrate.refuse_non_finite_state(model)
    leaves = leaves_of(model)
    plan = make_plan(model, recipe, source.example_inputs)
    if recipe.graph == "auto" and plan.graph == "eager":
        return _in_either_mode(model, plan, recipe, source, leaves)
    return _converted(model, plan, recipe, source, leaves)


def skeleton(
    model: nn.Module, recipe: GraphRecipe, graph: str, example_inputs: Mapping[str, torch.Tensor]
) -> nn.Module:
    """The structure that quantizing the model in that graph mode gives, with default scales."""
    taken = recipe.model_copy(update={"graph": graph})
    plan = make_plan(model, taken, example_inputs)
    with warnings.catch_warnings():
        # True here, and meant: the saved scales take the place of the default ones.
        warnings.filterwarnings("ignore", message=r"(?s)must run observer before calling calculate_qparams.*")
        return finished(observed(model, plan, taken, example_inputs))


def _in_either_mode(
    model: nn.Module, plan: Plan, recipe: StaticRecipe, source: ModelSource, leaves: Sequence[Leaf]
) -> Converted:
    """Eager mode as planned; where torch then cannot do it, FX graph mode."""
    # Eager mode changes the model in place.
    untouched = _copy(model)
    try:
        return _converted(model, plan, recipe, source, leaves)
    except QuantizationError as error:
        if untouched is None:
            raise
        refused = error
    graphed = recipe.model_copy(update={"graph": "fx"})
    try:
        again = make_plan(untouched, graphed, source.example_inputs)
        return _converted(untouched, again, graphed, source, leaves)
    except QuantizationError as error:
        if error.message == refused.message:
            # What is wrong has nothing to do with the graph mode.
            raise refused from None
        raise QuantizationError(
            f"{refused.message} FX graph mode fails as well: {error.message}", hint=error.hint
        ) from refused


def _copy(model: nn.Module) -> nn.Module | None:
    """A copy of a model, None where torch cannot make one."""
    memo: dict[int, object] = {}
    for module in model.modules():
        for value in vars(module).values():
            # A weight that is computed from others (`weight_norm`): torch copies only tensors that are not.
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        return deepcopy(model, memo)
    except (RuntimeError, TypeError):
        return None


def _converted(
    model: nn.Module, plan: Plan, recipe: StaticRecipe, source: ModelSource, leaves: Sequence[Leaf]
) -> Converted:
    name = type(model).__name__
    prepared = observed(model, plan, recipe, source.example_inputs)
    with smoke_test.refusing("calibrated", name, plan.graph):
        batches = source.calibration(recipe.calibration_batch_size)
        name_of_workload = source.job.workload.name
        calibrate.calibrate(prepared, batches, recipe.calibration_batches, name_of_workload, source.workspace.progress)
    converted = finished(prepared, name)
    try_out(converted, source.example_inputs)
    return Converted(converted, plan.graph, attribute(leaves, converted, plan))


def observed(
    model: nn.Module, plan: Plan, recipe: GraphRecipe, example_inputs: Mapping[str, torch.Tensor]
) -> nn.Module:
    """A float model with observers or fake quantization, in the plan's graph mode; the model may be changed.

    Raises
    ------
    QuantizationError
        torch cannot prepare the model.
    """
    with smoke_test.refusing("prepared", type(model).__name__, plan.graph):
        _pad_by_numbers(model)
        if plan.graph == "fx":
            return fx.observed(model, plan, recipe, example_inputs)
        return eager_mode.observed(model, plan, recipe, example_inputs)


def finished(prepared: nn.Module, name: str = "The model") -> nn.Module:
    """The quantized model, from one that has seen its data; packed for the quantized engine that is set.

    Parameters
    ----------
    name
        What an error calls the model.

    Raises
    ------
    QuantizationError
        torch cannot convert the model.
    """
    prepared.eval()
    graphed = isinstance(prepared, GraphModule)
    with smoke_test.refusing("converted", name, "fx" if graphed else "eager"):
        convert_it: Callable[..., nn.Module] = convert_fx if graphed else partial(convert, inplace=True)
        return _storable(convert_it(prepared))


def _pad_by_numbers(model: nn.Module) -> None:
    """Put numbers in the place of "same" and "valid", which torch's quantized convolutions do not know."""
    for module in model.modules():
        if isinstance(module, _ConvNd) and isinstance(module.padding, str):
            reaches = [reach * (size - 1) for size, reach in zip(module.kernel_size, module.dilation, strict=True)]
            if module.padding == "valid":
                module.padding = (0,) * len(reaches)
            elif not any(reach % 2 for reach in reaches):
                module.padding = tuple(reach // 2 for reach in reaches)


def _storable(converted: nn.Module) -> nn.Module:
    for module in converted.modules():
        if isinstance(module, ELU):
            # torch's quantized ELU alone keeps its output's range in plain attributes, outside the state dict.
            scale, zero_point = float(module.scale), int(module.zero_point)
            del module.scale, module.zero_point
            module.register_buffer("scale", torch.tensor(scale))
            module.register_buffer("zero_point", torch.tensor(zero_point))
    return converted
