"""From a float model to a converted one, in the planned graph mode: attach observers, show data, convert, try out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import nn
from torch.ao import quantization
from torch.ao.nn.quantized import ELU
from torch.ao.quantization.quantize_fx import convert_fx
from torch.fx import GraphModule

from storage.errors import QuantizationError
from tasks.quantize.base import Converted, Converter
from tasks.quantize.calibration import calibrate, refuse_non_finite_state
from tasks.quantize.coverage import leaves_of
from tasks.quantize.graph.counterparts import cover_fused
from tasks.quantize.graph.functional import parameters_read
from tasks.quantize.graph.plan import Plan, make_plan
from tasks.quantize.graph.prepare import prepare
from tasks.quantize.graph.smoke_test import refusing, try_out
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec


class GraphConverter(Converter):
    """Quantizes a model's whole graph to int8."""

    def skeleton(
        self, model: nn.Module, spec: Spec, graph: str, example_inputs: Mapping[str, torch.Tensor]
    ) -> nn.Module:
        """Give the model the structure that quantizing it in that graph mode gives, with default scales."""
        taken = in_mode(spec, graph)
        plan = make_plan(model, taken, example_inputs)
        with warnings.catch_warnings():
            # True here, and meant: the saved scales take the place of the default ones.
            warnings.filterwarnings("ignore", message=r"(?s)must run observer before calling calculate_qparams.*")
            return convert(prepare(model, plan, taken, example_inputs))


class StaticConverter(GraphConverter):
    """Observes, calibrates and converts."""

    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Quantize weights and activations by ranges seen in calibration, in eager or FX graph mode.

        Raises
        ------
        QuantizationError
            The graph mode that the spec asks for cannot express the model, there is nothing to calibrate with, an
            operation has no quantized kernel, or numbers are not finite.
        """
        refuse_non_finite_state(model)
        plan = make_plan(model, spec, source.example_inputs)
        try:
            return _calibrate_and_convert(model, plan, spec, source)
        except QuantizationError as error:
            if spec.graph != "auto" or plan.graph == "fx":
                raise
            refusal = error
        # Eager mode has changed the model.
        model, in_fx = source.float_model(), replace(spec, graph="fx")
        try:
            return _calibrate_and_convert(model, make_plan(model, in_fx, source.example_inputs), in_fx, source)
        except QuantizationError as error:
            if error.message == refusal.message:
                # What is wrong has nothing to do with the graph mode.
                raise refusal from None
            raise QuantizationError(
                f"{refusal.message} FX graph mode fails as well: {error.message}", hint=error.hint
            ) from refusal


def in_mode(spec: Spec, graph: str) -> Spec:
    """Ask for the graph mode that was taken."""
    return replace(spec, graph="fx" if graph == "fx" else "eager")


def quantize_as_planned(
    model: nn.Module, plan: Plan, spec: Spec, source: ModelSource, show_data: Callable[[nn.Module], object]
) -> Converted:
    """Quantize a float model, which is changed; `show_data` calibrates or trains the prepared model.

    Raises
    ------
    QuantizationError
        torch cannot do it, an operation has no quantized kernel, or numbers are not finite.
    """
    leaves = leaves_of(model)
    prepared = prepare(model, plan, spec, source.example_inputs)
    show_data(prepared)
    read = parameters_read(prepared)
    converted = convert(prepared, type(model).__name__)
    try_out(converted, source.example_inputs)
    packed = read - parameters_read(converted)
    return Converted(converted, plan.graph, cover_fused(leaves, converted, plan, packed))


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


def _calibrate_and_convert(model: nn.Module, plan: Plan, spec: Spec, source: ModelSource) -> Converted:
    calibration = spec.calibration
    assert calibration is not None

    def show_data(prepared: nn.Module) -> None:
        with refusing("calibrated", type(model).__name__, plan.graph):
            calibrate(prepared, source, calibration)

    return quantize_as_planned(model, plan, spec, source, show_data)
