#!/usr/bin/env bash
# ONNX Runtime runs a QDQ convolution with a float bias in int8 only because one graph optimizer quantizes the bias.
#
# Versions: onnxruntime 1.31.1, onnx 1.23.2.
#
# A model in QDQ form gives a convolution int8 activations and int8 weights. If its bias is float, the optimizer
# WeightBiasQuantization turns the bias into int32, and ONNX Runtime then fuses the group into one QLinearConv. A session
# that disables this optimizer keeps a float Conv between conversions, although activations and weights are int8. It
# prints no warning. An int32 bias with its own DequantizeLinear is fused in both sessions.
#
# Why it surprises: the name of the optimizer says that it changes weights and biases, not that int8 depends on it.
# The optimizer is worth disabling, because it also quantizes the layers that a recipe left in float (see
# onnxruntime-quantizes-float-layers.sh).
#
# Cost: the int8 model is several times slower than it should be, and its outputs differ from those of a default session.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --quiet onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

print("onnxruntime", ort.__version__, "onnx", onnx.__version__)
print("expected: the convolution runs in int8 (QLinearConv) in all four sessions")
ort.set_default_logger_severity(3)
rng = np.random.default_rng(0)
bias = rng.normal(size=32).astype(np.float32)
scale = {"x": np.float32(0.02), "w": np.float32(0.003), "y": np.float32(0.1)}


def model(bias_type):
    node = helper.make_node
    bias_scale = scale["x"] * scale["w"]
    values = {"w": rng.integers(-127, 127, (32, 32, 3, 3)).astype(np.int8), "zu": np.uint8(128), "zi": np.int8(0)}
    values |= {f"s{name}": value for name, value in scale.items()}
    nodes = [node("QuantizeLinear", ["x", "sx", "zu"], ["xq"]), node("DequantizeLinear", ["xq", "sx", "zu"], ["xd"])]
    nodes.append(node("DequantizeLinear", ["w", "sw", "zi"], ["wd"]))
    if bias_type == "float":
        values["bd"] = bias
    else:
        values |= {"b": np.rint(bias / bias_scale).astype(np.int32), "sb": bias_scale}
        nodes.append(node("DequantizeLinear", ["b", "sb"], ["bd"]))
    nodes += [node("Conv", ["xd", "wd", "bd"], ["y"]), node("QuantizeLinear", ["y", "sy", "zu"], ["yq"])]
    nodes.append(node("DequantizeLinear", ["yq", "sy", "zu"], ["out"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "out")]
    ends[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, 28, 28])
    ends[1] = helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 32, 26, 26])
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(np.asarray(v), k) for k, v in values.items()])
    result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(result, full_check=True)
    return result.SerializeToString()
PY
