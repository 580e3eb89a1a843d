"""Quantize an exported graph with torchao's PT2E for XNNPACK's kernels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch import fx
from torchao.quantization.pt2e import MinMaxObserver, PerChannelMinMaxObserver

from tasks.quantize.base import Trained
from tasks.quantize.pt2e import LEAST_SCALE, OBSERVERS, batch_norms, quantize_graph
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec

_PRODUCTS = (torch.ops.aten.linear.default, torch.ops.aten.conv1d.default, torch.ops.aten.conv2d.default)


def quantize(graph: fx.GraphModule, spec: Spec, source: ModelSource, excluded: Collection[str]) -> Trained:
    """Quantize the complete graph statically, or its Linear layers dynamically."""
    _name_owners(graph)
    folded = dict(batch_norms(graph))
    return Trained(quantize_graph(graph, _quantizer(spec, excluded), source, spec.calibration), folded)


def _quantizer(spec: Spec, excluded: Collection[str]) -> XNNPACKQuantizer:
    is_per_channel, is_dynamic = "channel" in spec.granularities, "static" not in spec.activations
    configuration = get_symmetric_quantization_config(is_per_channel=is_per_channel, is_dynamic=is_dynamic)
    observer = PerChannelMinMaxObserver if is_per_channel else MinMaxObserver
    weight = replace(configuration.weight, observer_or_fake_quant_ctr=observer.with_args(eps=LEAST_SCALE))
    configuration = replace(configuration, weight=weight)
    quantizer = XNNPACKQuantizer()
    if spec.calibration is not None:
        observer = OBSERVERS[spec.calibration.observer].with_args(eps=LEAST_SCALE)
        activation = replace(configuration.input_activation, observer_or_fake_quant_ctr=observer)
        quantizer.set_global(replace(configuration, input_activation=activation, output_activation=activation))
    elif "Linear" in spec.layers:
        quantizer.set_operator_type(torch.ops.aten.linear.default, configuration)
    quantizer.set_filter_function(lambda node: excluded.isdisjoint(path for path, _ in _stack(node).values()))
    return quantizer


def _stack(node: fx.Node) -> dict[str, tuple[str, object]]:
    return node.meta.get("nn_module_stack") or {}


def _name_owners(graph: fx.GraphModule) -> None:
    """Attribute products to the modules whose weights they use, such as ``out_proj``, which attention never calls."""
    for node in graph.graph.nodes:
        if node.target in _PRODUCTS and isinstance(weight := node.args[1], fx.Node) and weight.op == "get_attr":
            path, stack = str(weight.target).rpartition(".")[0], _stack(node)
            if path and path not in {known for known, _ in stack.values()}:
                node.meta["nn_module_stack"] = {**stack, path: (path, None)}
