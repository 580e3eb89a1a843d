"""From a float model to a converted one, in the planned graph mode: attach observers, show data, convert, try out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.ao import quantization
from torch.ao.nn.quantized import ELU
from torch.ao.quantization.quantize_fx import convert_fx
from torch.fx import GraphModule

from storage.errors import QuantizationError
from tasks.quantize.base import Converted
from tasks.quantize.calibration import calibrate, refuse_non_finite_state
from tasks.quantize.counterparts import cover_fused
from tasks.quantize.coverage import leaves_of
from tasks.quantize.graph import eager_mode, fx
from tasks.quantize.graph.functional import parameters_read
from tasks.quantize.graph.plan import Plan, make_plan
from tasks.quantize.graph.smoke_test import refusing, try_out

if TYPE_CHECKING:
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
    refuse_non_finite_state(model)
    plan = make_plan(model, recipe, source.example_inputs)
    try:
        return _calibrate_and_convert(model, plan, recipe, source)
    except QuantizationError as error:
        if recipe.graph != "auto" or plan.graph == "fx":
            raise
        refusal = error
    # Eager mode has changed the model.
    model, in_fx = source.float_model(), recipe.model_copy(update={"graph": "fx"})
    try:
        return _calibrate_and_convert(model, make_plan(model, in_fx, source.example_inputs), in_fx, source)
    except QuantizationError as error:
        if error.message == refusal.message:
            # What is wrong has nothing to do with the graph mode.
            raise refusal from None
        raise QuantizationError(
            f"{refusal.message} FX graph mode fails as well: {error.message}", hint=error.hint
        ) from refusal


def quantize_as_planned(
    model: nn.Module, plan: Plan, recipe: GraphRecipe, source: ModelSource, show_data: Callable[[nn.Module], object]
) -> Converted:
    """Quantize a float model, which is changed; `show_data` calibrates or trains the prepared model.

    Raises
    ------
    QuantizationError
        torch cannot do it, an operation has no quantized kernel, or numbers are not finite.
    """
    leaves = leaves_of(model)
    prepared = prepare(model, plan, recipe, source.example_inputs)
    show_data(prepared)
    read = parameters_read(prepared)
    converted = convert(prepared, type(model).__name__)
    try_out(converted, source.example_inputs)
    packed = read - parameters_read(converted)
    return Converted(converted, plan.graph, cover_fused(leaves, converted, plan, packed))


def skeleton(
    model: nn.Module, recipe: GraphRecipe, graph: str, example_inputs: Mapping[str, torch.Tensor]
) -> nn.Module:
    """The structure that quantizing the model in that graph mode gives, with default scales."""
    taken = recipe.model_copy(update={"graph": graph})
    plan = make_plan(model, taken, example_inputs)
    with warnings.catch_warnings():
        # True here, and meant: the saved scales take the place of the default ones.
        warnings.filterwarnings("ignore", message=r"(?s)must run observer before calling calculate_qparams.*")
        return convert(prepare(model, plan, taken, example_inputs))


def prepare(model: nn.Module, plan: Plan, recipe: GraphRecipe, example_inputs: Mapping[str, torch.Tensor]) -> nn.Module:
    """Attach observers or fake quantization to a float model in the plan's graph mode; the model may be changed.

    Raises
    ------
    QuantizationError
        torch cannot prepare the model, or a convolution pads its sides differently.
    """
    with refusing("prepared", type(model).__name__, plan.graph):
        prepare_it = fx.prepare if plan.graph == "fx" else eager_mode.prepare
        return prepare_it(model, plan, recipe, example_inputs)


def convert(prepared: nn.Module, name: str = "The model") -> nn.Module:
    """Convert a model that has seen its data, and pack it for the quantized engine; errors call it `name`.

    Raises
    ------
    QuantizationError
        torch cannot convert the model.
    """
    prepared.eval()
    with refusing("converted", name, "fx" if isinstance(prepared, GraphModule) else "eager"):
        converted: nn.Module
        if isinstance(prepared, GraphModule):
            converted = convert_fx(prepared)
        else:
            converted = quantization.convert(prepared, inplace=True)  # type: ignore[no-untyped-call]
    for module in converted.modules():
        if isinstance(module, ELU):
            # torch's quantized ELU alone keeps its output's range in plain attributes, outside the state dict.
            scale, zero_point = float(module.scale), int(module.zero_point)
            del module.scale, module.zero_point
            module.register_buffer("scale", torch.tensor(scale))
            module.register_buffer("zero_point", torch.tensor(zero_point))
    return converted


def _calibrate_and_convert(model: nn.Module, plan: Plan, recipe: StaticRecipe, source: ModelSource) -> Converted:
    def show_data(prepared: nn.Module) -> None:
        with refusing("calibrated", type(model).__name__, plan.graph):
            batches = source.calibration_batches(recipe.calibration_batch_size)
            name, progress = source.name, source.workspace.progress
            calibrate(prepared, batches, recipe.calibration_batches, name, progress)

    return quantize_as_planned(model, plan, recipe, source, show_data)
