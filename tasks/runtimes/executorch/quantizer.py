"""Quantize an exported graph with torchao's PT2E for XNNPACK's kernels."""

from __future__ import annotations

from dataclasses import replace

import torch
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
from torch import Tensor, fx, nn
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerGroup, quantize_
from torchao.quantization.pt2e import MinMaxObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, SharedQuantizationSpec

from tasks.quantize.pt2e import LEAST_SCALE, OBSERVERS, batch_norms, is_product, quantize_graph
from tasks.quantize.source import ModelSource, Trained
from tasks.quantize.spec import Spec

_aten = torch.ops.aten
_GROUP, _ANNOTATION = 32, "quantization_annotation"


class _Quantizer(xnnpack.XNNPACKQuantizer):  # type: ignore[misc]
    """XNNPACK's quantizer without three defects, which concern integers, such as positions, masks and padding."""

    def transform_for_annotation(self, model: fx.GraphModule) -> fx.GraphModule:
        """Use operators with scalars for integers; the base class replaces only the scalars of the other operators."""
        scalar = {_aten.add.Tensor: _aten.add.Scalar, _aten.mul.Tensor: _aten.mul.Scalar}
        for node in model.graph.nodes:
            is_integer = node.target in scalar and not node.meta["val"].is_floating_point()
            if is_integer and not isinstance(node.args[1], fx.Node):
                node.target = scalar[node.target]
        return super().transform_for_annotation(model)  # type: ignore[no-any-return]

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        """Quantize padding as its input, and no masks; XNNPACK does not load padding between int8 and float."""
        for node in super().annotate(model).graph.nodes:
            if isinstance(value := node.meta.get("val"), Tensor) and not value.is_floating_point():
                node.meta.pop(_ANNOTATION, None)
            elif node.target == _aten.pad.default and getattr(node.args[0].meta.get(_ANNOTATION), "output_qspec", None):
                same = SharedQuantizationSpec(node.args[0])
                node.meta[_ANNOTATION] = QuantizationAnnotation({node.args[0]: same}, same, _annotated=True)
        return model


def quantize(graph: fx.GraphModule, spec: Spec, source: ModelSource, excluded: frozenset[str]) -> Trained:
    """Quantize the complete graph statically, or its Linear layers dynamically."""
    _name_owners(graph)
    folded = dict(batch_norms(graph))  # conversion folds them in place
    return Trained(quantize_graph(graph, _quantizer(spec, excluded), source, spec.calibration), folded)


def with_four_bits(model: nn.Module, excluded: frozenset[str]) -> nn.Module:
    """Quantize the weights of a model's Linear layers in place, in groups, and the activations per row at run time."""
    int4: torch.dtype = torch.int4  # type: ignore[attr-defined]
    config = Int8DynamicActivationIntxWeightConfig(weight_dtype=int4, weight_granularity=PerGroup(_GROUP))
    named = model.named_modules(remove_duplicate=False)
    fit = {path for path, part in named if type(part) is nn.Linear and part.in_features % _GROUP == 0} - excluded
    quantize_(model, config, lambda _, path: path in fit)
    return model


def _quantizer(spec: Spec, excluded: frozenset[str]) -> _Quantizer:
    is_per_channel, is_dynamic = "channel" in spec.granularities, "static" not in spec.activations
    configuration = xnnpack.get_symmetric_quantization_config(is_per_channel=is_per_channel, is_dynamic=is_dynamic)
    observer = PerChannelMinMaxObserver if is_per_channel else MinMaxObserver
    weight = replace(configuration.weight, observer_or_fake_quant_ctr=observer.with_args(eps=LEAST_SCALE))
    configuration = replace(configuration, weight=weight)
    quantizer = _Quantizer()
    if spec.calibration is not None:
        observer = OBSERVERS[spec.calibration.observer].with_args(eps=LEAST_SCALE)
        activation = replace(configuration.input_activation, observer_or_fake_quant_ctr=observer)
        quantizer.set_global(replace(configuration, input_activation=activation, output_activation=activation))
    elif "Linear" in spec.layers:
        quantizer.set_operator_type(_aten.linear.default, configuration)
    quantizer.set_filter_function(lambda node: excluded.isdisjoint(_paths(node)))
    return quantizer


def _paths(node: fx.Node) -> list[str]:
    return [path for path, _ in node.meta.get("nn_module_stack", {}).values()]


def _name_owners(graph: fx.GraphModule) -> None:
    """Attribute products to the modules whose weights they use, such as ``out_proj``, which attention never calls."""
    for node in filter(is_product, graph.graph.nodes):
        owner = str(node.args[1].target).rpartition(".")[0] if node.args[1].op == "get_attr" else ""
        if owner and owner not in _paths(node):
            node.meta["nn_module_stack"] = {**node.meta["nn_module_stack"], owner: (owner, "")}
