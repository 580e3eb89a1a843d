"""Quantize a float model in the planned graph mode: attach observers, calibrate or train, convert, and test the result.

This file also pairs quantized modules with float modules, to report the coverage of fused models and to compare layers.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.ao.nn.quantized import ELU
from torch.ao.quantization.quantize_fx import convert_fx
from torch.fx import GraphModule

from storage.errors import QuantizationError
from tasks.quantize.base import Converted, Converter
from tasks.quantize.coverage import cover, is_within, leaves_of
from tasks.quantize.dynamic_modules import FourBitEmbedding
from tasks.quantize.graph.functional import parameters_read
from tasks.quantize.graph.observers import UNSUPPORTED
from tasks.quantize.graph.plan import Plan, make_plan
from tasks.quantize.graph.prepare import FloatInside, QuantizedInside, fuse, prepare
from tasks.quantize.graph.trace import refusing, try_out
from tasks.quantize.source import ModelSource, calibrate, refuse_non_finite_state
from tasks.quantize.spec import Spec
from tasks.refs import ModuleCoverage

# `_QUANTIZED_MODULES` omits ``torch.ao.nn.quantized.reference``, because the modules in that package compute in float.
_QUANTIZED_MODULES = (
    "torch.ao.nn.quantized.modules",
    "torch.ao.nn.quantized.dynamic.modules",
    "torch.ao.nn.intrinsic.quantized.modules",
    "torch.ao.nn.intrinsic.quantized.dynamic.modules",
    "tasks.quantize.int8_modules",
)


class GraphConverter(Converter):
    """A converter that quantizes a model's complete graph to int8."""

    @abstractmethod
    def show_data(self, prepared: nn.Module, spec: Spec, source: ModelSource) -> None:
        """Calibrate or train a prepared model."""

    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Prepare a float model, calibrate or train it, and convert it.

        Modules without an int8 kernel stay in float.
        """
        refuse_non_finite_state(model)
        plan, leaves, name = make_plan(model, spec, source.example_inputs), leaves_of(model), type(model).__name__
        prepared = prepare(model, plan, spec, source.example_inputs)
        self.show_data(prepared, spec, source)
        read = parameters_read(prepared)
        converted = convert(prepared, name)
        try_out(converted, source.example_inputs)
        packed = read - parameters_read(converted)
        return Converted(converted, plan.graph, cover_fused(leaves, converted, plan, packed))

    def skeleton(self, model: nn.Module, spec: Spec, graph: str, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Convert the model in the `graph` mode without calibration or training; return a model with default scales."""
        spec = _in_mode(spec, graph)
        plan = make_plan(model, spec, example_inputs)
        with warnings.catch_warnings():
            # Observers do not run here, because saved scales replace the default scales.
            warnings.filterwarnings("ignore", message=r"(?s)must run observer before calling calculate_qparams.*")
            return convert(prepare(model, plan, spec, example_inputs))


class StaticConverter(GraphConverter):
    """A converter that calibrates ranges with observers."""

    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Quantize weights and activations with ranges from calibration, in eager or FX graph mode.

        Raises
        ------
        QuantizationError
            The requested graph mode cannot express the model, or an operation lacks a quantized kernel. The error is
            also raised if there are no calibration samples, or if the model contains or returns NaN or infinity.
        """
        refuse_non_finite_state(model)  # check the weights before trying a graph mode
        try:
            return super().convert(model, spec, source)
        except QuantizationError as error:
            if spec.graph != "auto":
                raise
            refusal = error
        try:  # eager mode has changed `model`, so create a new model
            return super().convert(source.float_model(), replace(spec, graph="fx"), source)
        except QuantizationError as error:
            if error.message == refusal.message:
                # The cause of the error does not depend on the graph mode.
                raise refusal from None
            raise QuantizationError(
                f"{refusal.message} FX graph mode also fails: {error.message}", hint=error.hint
            ) from refusal

    def show_data(self, prepared: nn.Module, spec: Spec, source: ModelSource) -> None:
        """Calibrate the prepared model."""
        assert spec.calibration is not None
        with refusing("calibrated", source.name, _mode_of(prepared)):
            calibrate(prepared, source, spec.calibration)


def _in_mode(spec: Spec, graph: str) -> Spec:
    return replace(spec, graph="fx" if graph == "fx" else "eager")


def _mode_of(prepared: nn.Module) -> Literal["eager", "fx"]:
    return "fx" if isinstance(prepared, GraphModule) else "eager"


def convert(prepared: nn.Module, name: str = "The model") -> nn.Module:
    """Convert a calibrated or trained model, and pack it for the quantized engine; `name` is used in messages.

    Raises
    ------
    QuantizationError
        torch cannot convert the model.
    """
    prepared.eval()
    with refusing("converted", name, _mode_of(prepared)):
        converted: nn.Module
        if isinstance(prepared, GraphModule):
            converted = convert_fx(prepared)
        else:
            converted = quantization.convert(prepared, inplace=True)  # type: ignore[no-untyped-call]
    for module in converted.modules():
        if isinstance(module, ELU):
            # Only torch's quantized ELU keeps the output's range in plain attributes, outside the state dict.
            scale, zero_point = float(module.scale), int(module.zero_point)
            del module.scale, module.zero_point
            module.register_buffer("scale", torch.tensor(scale))
            module.register_buffer("zero_point", torch.tensor(zero_point))
    return converted


@dataclass(frozen=True)
class Pair:
    """A quantized module and the corresponding float module.

    ``path`` is the module's path in the float model. A fused module has the path of its first module.
    """

    path: str
    quantized: nn.Module
    float: nn.Module


def pair_with_float(
    model: nn.Module, converted: nn.Module, spec: Spec, graph: str, example_inputs: Mapping[str, Tensor]
) -> tuple[Pair, ...]:
    """Pair every quantized module that has weights with the corresponding float module, in the model's order.

    The float `model` may be fused in place; `converted` is the result of converting `model` in the `graph` mode.
    """
    if spec.form == "graph":
        model = fuse(model, make_plan(model, _in_mode(spec, graph), example_inputs))
    floats = dict(model.named_modules())
    return tuple(
        Pair(path, module, floats[path])
        for path, module in _modules_by_float_path(converted).items()
        if path in floats and has_quantized_kernel(module) and next(floats[path].parameters(), None) is not None
    )


def cover_fused(
    leaves: Sequence[ModuleCoverage], converted: nn.Module, plan: Plan, packed: Collection[str] = ()
) -> tuple[ModuleCoverage, ...]:
    """Mark each leaf module of the unfused float model as quantized, or record why the module stays in float.

    A fused module, such as a batch norm, counts as quantized if the first module of its chain is quantized. A module
    also counts as quantized if its parameters are in `packed`, the packed parameters of function calls in `forward`.
    """
    modules = _modules_by_float_path(converted)
    heads = {path: chain[0] for chain in plan.chains for path in chain}
    owners = {name.rpartition(".")[0] for name in packed}
    unsupported = {kind.__name__: reason for kind, reason in UNSUPPORTED.items()}

    def why_float(leaf: ModuleCoverage) -> str:
        head = heads.get(leaf.module, leaf.module)
        # torchvision's own fusing replaces each folded module with an Identity.
        if head in modules and (isinstance(modules[head], nn.Identity) or has_quantized_kernel(modules[head])):
            return ""
        if leaf.module in owners:
            return ""
        if leaf.type in unsupported:
            return unsupported[leaf.type]
        if is_within(leaf.module, plan.excluded) or is_within(head, plan.excluded):
            return "excluded by the recipe"
        if leaf.module in plan.outside:
            return "outside the model's own quantization stubs"
        return f"no quantized kernel for type {leaf.type}"

    return cover(leaves, why_float)


def has_quantized_kernel(module: nn.Module) -> bool:
    """Return whether a module of a converted model computes in integers or looks up quantized embeddings."""
    return isinstance(module, FourBitEmbedding) or is_within(type(module).__module__, _QUANTIZED_MODULES)


def _modules_by_float_path(converted: nn.Module) -> dict[str, nn.Module]:
    """Return the converted model's modules, keyed by their paths in the float model."""
    inner = converted.module if isinstance(converted, QuantizedInside) else converted
    return {
        path: module.module if isinstance(module, FloatInside) else module for path, module in inner.named_modules()
    }
