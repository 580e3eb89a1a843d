"""Post-training static quantization: observe, calibrate, convert."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import nn
from torch.ao.nn.quantized import ELU
from torch.ao.quantization import convert
from torch.ao.quantization.quantize_fx import convert_fx
from torch.fx import GraphModule

from tasks.quantize import attribution, calibrate, eager, fuse, fx, observers, trace, trial, unsound, wrap
from tasks.quantize import flow as planning
from tasks.quantize.attribution import attribute
from tasks.quantize.base import Context, Converted
from tasks.quantize.coverage import leaves_of
from tasks.quantize.flow import Plan, make_plan
from tasks.quantize.trial import try_out
from tasks.workload.recipe import QatRecipe, Recipe, StaticRecipe

# What besides this module decides the result.
PARTS = (attribution, calibrate, eager, planning, fuse, fx, observers, trace, trial, unsound, wrap)


class Static:
    """Weights and activations to int8 by ranges seen in calibration, in eager or FX graph mode."""

    def convert(self, model: nn.Module, recipe: Recipe, context: Context) -> Converted:
        """Quantize a float model.

        Raises
        ------
        QuantizationError
            The recipe's flow cannot express the model, there is nothing to calibrate with, an operation has no
            quantized kernel, or numbers are not finite.
        """
        if not isinstance(recipe, StaticRecipe):
            raise TypeError(f"expected a static recipe, got {recipe.method}")
        calibrate.refuse_non_finite_state(model)
        leaves = leaves_of(model)
        plan = make_plan(model, recipe, context.example_inputs)
        prepared = observed(model, plan, recipe, context.example_inputs)
        calibrate.calibrate(prepared, recipe, context)
        converted = finished(prepared)
        try_out(converted, context.example_inputs)
        return Converted(converted, plan.flow, attribute(leaves, converted, plan))

    def skeleton(
        self, model: nn.Module, recipe: Recipe, flow: str, example_inputs: Mapping[str, torch.Tensor]
    ) -> nn.Module:
        """The same structure with default scales; `flow` is the one that `convert` took."""
        if not isinstance(recipe, StaticRecipe | QatRecipe):
            raise TypeError(f"expected a static or qat recipe, got {recipe.method}")
        taken = recipe.model_copy(update={"flow": flow})
        plan = make_plan(model, taken, example_inputs)
        with warnings.catch_warnings():
            # True here, and meant: the saved scales take the place of the default ones.
            warnings.filterwarnings("ignore", message=r"(?s)must run observer before calling calculate_qparams.*")
            return finished(observed(model, plan, taken, example_inputs))


def observed(
    model: nn.Module, plan: Plan, recipe: StaticRecipe | QatRecipe, example_inputs: Mapping[str, torch.Tensor]
) -> nn.Module:
    """A float model with observers or fake quantization, by the flow of the plan."""
    if plan.flow == "fx":
        return fx.observed(model, plan, recipe, example_inputs)
    return eager.observed(model, plan, recipe, example_inputs)


def finished(prepared: nn.Module) -> nn.Module:
    """The quantized model, from one that has seen its data; packed for the quantized engine that is set."""
    prepared.eval()
    if isinstance(prepared, GraphModule):
        return _storable(convert_fx(prepared))
    return _storable(convert(prepared, inplace=True))  # type: ignore[no-untyped-call]


def _storable(converted: nn.Module) -> nn.Module:
    for module in converted.modules():
        if isinstance(module, ELU):
            # torch's quantized ELU alone keeps its output's range in plain attributes, outside the state dict.
            scale, zero_point = float(module.scale), int(module.zero_point)
            del module.scale, module.zero_point
            module.register_buffer("scale", torch.tensor(scale))
            module.register_buffer("zero_point", torch.tensor(zero_point))
    return converted
