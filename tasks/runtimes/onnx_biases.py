"""Quantize the biases of a trained ONNX model, so that ONNX Runtime computes its layers in int8.

torch exports the biases of a model with trained ranges as float. ONNX Runtime fuses a convolution or a product into an
int8 kernel only if the bias is int32. Its optimizer ``WeightBiasQuantization`` would quantize such biases, but it also
quantizes the weights of excluded layers, so nightquant's sessions disable it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_LARGEST = np.iinfo(np.int32).max


def quantize_biases(model: ModelProto) -> None:
    """Replace the float bias of each layer with int8 inputs and weights by an int32 constant and a DequantizeLinear.

    The scale of a bias is the product of the scales of the layer's input and weights, and the zero point is 0. See
    Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference" (2018).
    A bias whose quantized value exceeds 32 bits stays float.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    dequantized = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}

    def scale(name: str) -> NDArray[np.float32] | None:
        node = dequantized.get(name)
        return numpy_helper.to_array(constants[node.input[1]]) if node and node.input[1] in constants else None

    def ordered() -> Iterator[NodeProto]:
        for node in list(graph.node):
            name = node.input[2] if node.op_type in _LAYERS and len(node.input) > 2 else ""
            scales = [scale(operand) for operand in node.input[:2]]
            if name in constants and scales[0] is not None and scales[1] is not None:
                product, values = scales[0] * scales[1], numpy_helper.to_array(constants[name])
                bias = np.rint(values.astype(np.float64) / product)
                if product.shape in ((), values.shape) and np.abs(bias).max() <= _LARGEST:
                    names = [f"{node.name}/bias_{part}" for part in ("quantized", "scale", "dequantized")]
                    graph.initializer.extend(
                        (
                            numpy_helper.from_array(bias.astype(np.int32), names[0]),
                            numpy_helper.from_array(product.astype(np.float32), names[1]),
                        )
                    )
                    yield helper.make_node("DequantizeLinear", names[:2], names[2:], f"{node.name}/bias", axis=0)
                    node.input[2] = names[2]
            yield node

    nodes = list(ordered())
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
