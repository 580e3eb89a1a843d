"""Quantize statically with torchao's PT2E: attach observers to the exported graph, calibrate, and convert for Inductor.

PT2E is PyTorch's successor to ``torch.ao.quantization``. In the converted graph, float operations are surrounded by
quantize and dequantize operations. Inductor fuses the float, quantize and dequantize operations into oneDNN's int8
kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import fx

from tasks.environment.libraries import quiet
from tasks.quantize.coverage import cover_products, excluded_modules
from tasks.quantize.engine import saturates
from tasks.quantize.export import export, path_of
from tasks.quantize.graph.prepare import forgetting_models
from tasks.quantize.source import Converted, ModelSource, Trained, calibrate
from tasks.quantize.spec import Calibration, Spec

with quiet():  # importing torchao emits warnings
    from torchao.quantization.pt2e import (
        HistogramObserver,
        MinMaxObserver,
        MovingAverageMinMaxObserver,
        ObserverBase,
        PerChannelMinMaxObserver,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import QuantizationSpec, Quantizer
    from torchao.quantization.pt2e.quantizer.utils import QuantizationConfig
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )
    from torchao.utils import _assert_and_get_unique_device

_aten, _decomposed = torch.ops.aten, torch.ops.quantized_decomposed
_PRODUCTS = (_aten.conv1d.default, _aten.conv2d.default, _aten.linear.default)
_DEQUANTIZE = (_decomposed.dequantize_per_tensor.default, _decomposed.dequantize_per_channel.default)
# The smallest scale of torch's own observers. Quantizers' default of 2**-12 leaves few bits for weights below 0.03.
LEAST_SCALE = 2**-23
OBSERVERS: dict[str, type[ObserverBase]] = {
    "min-max": MinMaxObserver,
    "moving-average": MovingAverageMinMaxObserver,
    "histogram": HistogramObserver,
}


def quantize_exported(spec: Spec, source: ModelSource) -> Converted:
    """Quantize the float model with ranges from calibration."""
    model, calibration = source.float_model(), spec.calibration
    assert calibration is not None
    excluded_modules(model, spec.exclude)  # reject unknown names before exporting
    graph = export(model, source.example_inputs, source.axes).module()
    assert isinstance(graph, fx.GraphModule)
    folded = dict(batch_norms(graph))
    converted = quantize_graph(graph, _quantizer(calibration, spec.exclude), source, calibration)
    return _covered(converted, spec, source, folded)


def quantize_graph(
    graph: fx.GraphModule, quantizer: Quantizer, source: ModelSource, calibration: Calibration | None
) -> fx.GraphModule:
    """Apply a quantizer to an exported graph; without calibration, run only the example inputs."""
    with torch.no_grad(), forgetting_models(_assert_and_get_unique_device):  # torchao has its own copy of the cache
        prepared = prepare_pt2e(graph, quantizer)
        if calibration is not None:
            calibrate(prepared, source, calibration)
        else:
            prepared(*source.example_inputs.values())
        return convert_pt2e(prepared)  # type: ignore[no-any-return]


def export_trained(trained: Trained, spec: Spec, source: ModelSource) -> Converted:
    """Export a fine-tuned model as a quantized graph."""
    graph = export(trained.model, source.example_inputs, source.axes).module()
    assert isinstance(graph, fx.GraphModule)
    return _covered(graph, spec, source, {**dict(batch_norms(graph)), **trained.folded})


def _covered(graph: fx.GraphModule, spec: Spec, source: ModelSource, folded: Mapping[str, str]) -> Converted:
    """Determine which modules multiply in int8."""
    products = [(path_of(node), _is_int8(node)) for node in graph.graph.nodes if node.target in _PRODUCTS]
    quantized = {path for path, _ in products} - {path for path, is_int8 in products if not is_int8}
    lack = "Inductor has no int8 kernel for this {type}"
    return Converted(graph, cover_products(source.float_model(), spec, quantized, folded, lack))


def _quantizer(calibration: Calibration, exclude: Iterable[str]) -> X86InductorQuantizer:
    # Without VNNI, sums in oneDNN's kernels saturate unless activations leave one bit unused.
    highest = 127 if saturates("onednn") else 255
    activation = QuantizationSpec(
        dtype=torch.uint8,
        observer_or_fake_quant_ctr=OBSERVERS[calibration.observer].with_args(eps=LEAST_SCALE),
        quant_min=0,
        quant_max=highest,
        qscheme=torch.per_tensor_affine,
    )
    observer = PerChannelMinMaxObserver.with_args(eps=LEAST_SCALE)
    weight = replace(get_default_x86_inductor_quantization_config().weight, observer_or_fake_quant_ctr=observer)
    quantizer = X86InductorQuantizer()
    quantizer.set_global(QuantizationConfig(activation, activation, weight, None))
    for path in exclude:
        quantizer.set_module_name_qconfig(path, None)
    return quantizer


def batch_norms(graph: fx.GraphModule) -> Iterator[tuple[str, str]]:
    """Yield the path of each batch norm that directly follows a convolution or Linear layer, and the layer's path."""
    for node in graph.graph.nodes:
        if node.target is _aten.batch_norm.default and is_product(node.args[0]):
            yield path_of(node), path_of(node.args[0])


def is_product(node: fx.Node) -> bool:
    """Return whether an exported node is a Linear layer or a convolution of any kind."""
    return str(node.target).startswith(("aten.linear.", "aten.conv"))


def _is_int8(product: fx.Node) -> bool:
    """Return whether both factors of a product are dequantized values."""
    return all(isinstance(factor, fx.Node) and factor.target in _DEQUANTIZE for factor in product.args[:2])
