"""Export the float model to ONNX with torch.export, not TorchScript, as an artifact that several runtimes share.

Every node's name begins with the path of its module (``rnn/node_LSTM_54``). Exclusions and coverage use the path in a
node's name to find the node's module.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper
from onnxscript import ir, opset20
from onnxscript.optimizer import optimize_ir
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from storage.errors import QuantizationError
from tasks.environment.libraries import quiet
from tasks.environment.machine import installed_version
from tasks.environment.sources import code_digest
from tasks.quantize.coverage import is_within
from tasks.quantize.export import forgetting_exports, open_shapes, opened
from tasks.quantize.source import ModelSource, Trained, converter_of, refusing
from tasks.quantize.spec import Spec
from tasks.runtimes.base import EXPORTING

KIND = "onnx"
MODEL, FOLDED = "model.onnx", "folded.json"
# Maximum size of a protocol buffer in bytes.
LARGEST_BYTES = 2**31 - 1

_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_LARGEST = np.iinfo(np.int32).max
# `Value` and `op` are typed as Any, because the type hints of onnxscript's operators exclude values that the operators
# accept.
Value = Any
op: Any = opset20


def find_or_export(source: ModelSource, spec: Spec) -> Path:
    """Export the float or fine-tuned model, or reuse an earlier export; return the folder, whose name is the digest."""
    made_from = {
        **source.made_from,
        "axes": {name: dict(axes) for name, axes in source.axes.items()},
        "versions": {name: installed_version(name) for name in EXPORTING},
        "export": code_digest(__name__),
    }
    if spec.training is not None:
        made_from["spec"] = spec.content()
        made_from["training"] = code_digest(type(converter_of(spec)).__module__)
    return source.workspace.find_or_make(KIND, made_from, lambda folder: _export(source, spec, folder))


def _export(source: ModelSource, spec: Spec, folder: Path) -> None:
    trained = Trained(source.float_model(), {})
    if spec.training is not None:
        trained = converter_of(spec).train(spec, source)
    exported, norms = export(trained.model, source.example_inputs, source.axes)
    if spec.training is not None:
        _quantize_biases(exported)
    (folder / MODEL).write_bytes(exported.SerializeToString())
    (folder / FOLDED).write_text(json.dumps({**norms, **trained.folded}), encoding="utf-8")


def export(
    model: nn.Module, examples: Mapping[str, Tensor], axes: Mapping[str, Mapping[int, str]]
) -> tuple[ModelProto, dict[str, str]]:
    """Export a model with nodes named after modules; return also the module into which each batch norm was folded."""
    inputs = opened(examples, axes)
    hint = "Rewrite the code named in the message, or remove the onnxruntime and openvino runtimes from the recipes."
    with refusing("The model cannot be exported to ONNX", hint), quiet(), torch.no_grad(), _forgetting():
        program = torch.onnx.export(
            model,
            tuple(inputs.values()),
            dynamo=True,
            dynamic_shapes=open_shapes(model, inputs, axes),
            input_names=list(inputs),
            custom_translation_table={torch.ops.aten.lstm.input: lstm},
            verbose=False,
        )
        assert program is not None
        # Fold constants, because weights computed in the graph, such as LSTM weights, would otherwise not belong to a
        # module.
        optimize_ir(program.model, input_size_limit=LARGEST_BYTES, output_size_limit=LARGEST_BYTES)
    exported = program.model_proto
    modules = dict(model.named_modules())
    _refuse_fixed_axes(exported.graph, axes)
    folded: dict[str, str] = {}
    for node in exported.graph.node:
        scopes = {entry.key: entry.value for entry in node.metadata_props}.get("pkg.torch.onnx.name_scopes", "[]")
        path = next((scope for scope in reversed(ast.literal_eval(scopes)) if scope in modules), "")
        owner = next((name.rpartition(".")[0] for name in node.input if name.endswith(".weight")), "")
        if owner in modules and isinstance(modules[path], _BatchNorm) and node.op_type != "BatchNormalization":
            # The batch norm was folded into an operator whose weights have kept their names.
            folded[path] = owner
            path = owner
        elif owner in modules and (not path or is_within(owner, [path])):
            # For example, nn.MultiheadAttention multiplies by the weights of its out_proj without calling out_proj.
            path = owner
        node.name = f"{path}/{node.name}"
        del node.metadata_props[:]  # remove source code and this host's paths
    graph = exported.graph
    for described in (exported, graph, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del described.metadata_props[:]
    return exported, folded


@contextmanager
def _forgetting() -> Iterator[None]:
    """Keep no model in memory; each of onnxscript's rules would keep the last graph that it has seen."""
    with forgetting_exports():
        try:
            yield
        finally:
            value = ir.Value(name="x", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.FLOAT))
            node = ir.Node("", "Relu", [value])
            graph = ir.Graph([value], node.outputs, nodes=[node], opset_imports={"": op.version})
            optimize_ir(ir.Model(graph, ir_version=10))


def _quantize_biases(model: ModelProto) -> None:
    """Replace the float bias of each layer with int8 inputs and weights by an int32 constant and a DequantizeLinear.

    The scale of a bias is the product of the scales of the layer's input and weights (Jacob et al., "Quantization and
    Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018). A bias whose quantized value
    exceeds 32 bits stays float.
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


def _refuse_fixed_axes(graph: GraphProto, axes: Mapping[str, Mapping[int, str]]) -> None:
    shapes = {entry.name: entry.type.tensor_type.shape.dim for entry in graph.input}
    fixed = []
    for name, lengths in shapes.items():
        for index, axis in axes.get(name, {}).items():
            if not lengths[index].dim_param:
                fixed.append(f"{axis} of {name} at {lengths[index].dim_value}")
    if fixed:
        raise QuantizationError(
            f"torch.onnx.export fixed the length of axes that must vary: {', '.join(fixed)}.",
            hint="Use nn.GRU or nn.LSTM instead of nn.RNN, or remove the onnxruntime and openvino runtimes.",
        )


def lstm(
    inputs: Value,
    state: Sequence[Value],
    weights: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Value, Value, Value]:
    """Translate ``aten::lstm.input``; onnxscript's own translation adds ten operators that run in every call.

    `state` is h and c, each [L * D, B, H] for L layers and D directions. `weights` are, for each layer and direction,
    the input and recurrent weights, followed by both biases if `has_biases`.
    """
    directions = 2 if bidirectional else 1
    per_direction = len(weights) // (num_layers * directions)
    if per_direction != (4 if has_biases else 2):
        raise NotImplementedError("an LSTM with projections (proj_size) has no counterpart in ONNX")
    if batch_first:
        inputs = op.Transpose(inputs, perm=[1, 0, 2])
    # Split the state by layer.
    before_h, before_c = (
        [part] if num_layers == 1 else op.Split(part, num_outputs=num_layers, axis=0) for part in state
    )
    after_h, after_c = [], []
    for layer in range(num_layers):
        starts = (per_direction * (layer * directions + side) for side in range(directions))
        sides = [weights[start : start + per_direction] for start in starts]
        outputs, h, c = op.LSTM(
            inputs,
            _stacked([_reordered(side[0]) for side in sides]),
            _stacked([_reordered(side[1]) for side in sides]),
            _stacked([op.Concat(*map(_reordered, side[2:4]), axis=0) for side in sides]) if has_biases else None,
            None,  # all sequences have the same length
            before_h[layer],
            before_c[layer],
            direction="bidirectional" if bidirectional else "forward",
            hidden_size=int(sides[0][1].shape[1]),  # recurrent weights are [4 * H, H]
        )
        if bidirectional:  # the shape of `outputs` is [T, D, B, H]
            inputs = op.Reshape(op.Transpose(outputs, perm=[0, 2, 1, 3]), op.Constant(value_ints=[0, 0, -1]))
        else:
            inputs = op.Squeeze(outputs, op.Constant(value_ints=[1]))
        after_h.append(h)
        after_c.append(c)
    if batch_first:
        inputs = op.Transpose(inputs, perm=[1, 0, 2])
    return inputs, _joined(after_h), _joined(after_c)


def _reordered(gates: Value) -> Value:
    """Reorder gates from torch's order (input, forget, cell, output) to ONNX's order (input, output, forget, cell)."""
    size, axis = int(gates.shape[0]) // 4, op.Constant(value_ints=[0])
    input_gate, forget, cell, output = (
        op.Slice(gates, op.Constant(value_ints=[index * size]), op.Constant(value_ints=[(index + 1) * size]), axis)
        for index in range(4)
    )
    return op.Concat(input_gate, output, forget, cell, axis=0)


def _stacked(sides: Sequence[Value]) -> Value:
    axis = op.Constant(value_ints=[0])
    return _joined([op.Unsqueeze(side, axis) for side in sides])


def _joined(parts: Sequence[Value]) -> Value:
    return op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]
