"""Quantize a float model's graph, and pair quantized modules with float modules to compare layers."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx, nn
from torch.ao.quantization.quantize_fx import convert_fx

from tasks.quantize.coverage import cover, is_within, leaves_of, own_behavior
from tasks.quantize.dynamic_modules import FourBitEmbedding
from tasks.quantize.graph.prepare import UNSUPPORTED, Prepared, forgetting_models, fuse, prepare
from tasks.quantize.graph.trace import try_out
from tasks.quantize.source import Converted, Converter, ModelSource, calibrate, refusing
from tasks.quantize.spec import Spec
from tasks.values.refs import ModuleCoverage

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
    def show_data(self, observing: nn.Module, spec: Spec, source: ModelSource) -> None:
        """Calibrate or train a prepared model."""

    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Prepare a float model, calibrate or train it, and convert it."""
        leaves, name = leaves_of(model), type(model).__name__
        prepared = prepare(model, spec, source.example_inputs)
        self.show_data(prepared.observing, spec, source)
        converted = convert(prepared.graph, name)
        try_out(converted, source.example_inputs)
        return Converted(converted, cover_fused(leaves, converted, prepared))

    def skeleton(self, model: nn.Module, spec: Spec, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Convert the model without calibration or training; return a model with default scales."""
        with warnings.catch_warnings():
            # Observers do not run here, because saved scales replace the default scales.
            warnings.filterwarnings("ignore", message=r"(?s)must run observer before calling calculate_qparams.*")
            return convert(prepare(model, spec, example_inputs).graph)


class StaticConverter(GraphConverter):
    """A converter that calibrates ranges with observers."""

    def show_data(self, observing: nn.Module, spec: Spec, source: ModelSource) -> None:
        """Calibrate the prepared model."""
        assert spec.calibration is not None
        with refusing(f"{source.name} cannot be calibrated"):
            calibrate(observing, source, spec.calibration)


def convert(prepared: fx.GraphModule, name: str = "The model") -> fx.GraphModule:
    """Convert a calibrated or trained model, and pack it for the quantized engine; `name` is used in messages."""
    with refusing(f"{name} cannot be converted"), forgetting_models():
        return convert_fx(prepared.eval())


@dataclass(frozen=True)
class Pair:
    """A quantized module and the corresponding float module, with the path of the (first) module in the float model."""

    path: str
    quantized: nn.Module
    float: nn.Module


def pair_with_float(
    model: nn.Module, converted: nn.Module, spec: Spec, example_inputs: Mapping[str, Tensor]
) -> tuple[Pair, ...]:
    """Pair every quantized module that has weights with the corresponding float module, in the model's order."""
    if spec.form == "graph":
        model = fuse(model, len(example_inputs))
    floats = dict(model.named_modules())
    return tuple(
        Pair(path, module, floats[path])
        for path, module in converted.named_modules()
        if path in floats and has_quantized_kernel(module) and next(floats[path].parameters(), None) is not None
    )


def cover_fused(
    leaves: Sequence[ModuleCoverage], converted: nn.Module, prepared: Prepared
) -> tuple[ModuleCoverage, ...]:
    """Mark leaf modules of the float model as quantized, as folded batch norms are with their layer, or say why not."""
    modules, folded = dict(converted.named_modules()), prepared.folded
    unsupported = {kind.__name__: reason for kind, reason in UNSUPPORTED.items()}
    excluded = prepared.excluded | {layer for norm, layer in folded.items() if norm in prepared.excluded}

    def why_float(leaf: ModuleCoverage) -> str:
        head = folded.get(leaf.module, leaf.module)
        if head in modules and has_quantized_kernel(modules[head]):
            return ""
        if not excluded.isdisjoint((leaf.module, head)):
            return "excluded by the recipe"
        if head in modules and (behavior := own_behavior(modules[head])):
            return f"the module {behavior}"
        return unsupported.get(leaf.type, f"no quantized kernel for type {leaf.type}")

    return cover(leaves, why_float)


def has_quantized_kernel(module: nn.Module) -> bool:
    """Return whether a module of a converted model computes in integers or looks up quantized embeddings."""
    return isinstance(module, FourBitEmbedding) or is_within(type(module).__module__, _QUANTIZED_MODULES)
