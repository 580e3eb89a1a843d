#!/usr/bin/env bash
# ONNX Runtime runs a QDQ convolution with a float bias in int8 only if one graph optimizer quantizes the bias.
#
# Versions: onnxruntime 1.31.1, onnx 1.23.2.
#
# A model in QDQ form gives a convolution int8 activations and int8 weights. If its bias is float, the optimizer
# WeightBiasQuantization turns the bias into int32, and ONNX Runtime then fuses the group into one QLinearConv. A
# session that disables this optimizer keeps a float Conv between conversions, although activations and weights are
# int8. It prints no warning. An int32 bias with its own DequantizeLinear is fused in both sessions.
#
# Why it surprises: nothing says that the int8 kernels depend on this optimizer. There is a reason to disable it, because
# it also quantizes layers that were left in float (see onnxruntime-quantizes-float-layers.sh).
#
# Cost: the int8 model is several times slower than it should be, and its outputs differ from the outputs of a default
# session.
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
from onnx import numpy_helper, parser

print("onnxruntime", ort.__version__, "onnx", onnx.__version__)
print("expected: the convolution runs in int8 (QLinearConv) in all four sessions")
GRAPH = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,32,28,28] x) => (float[1,32,26,26] out) {
  xq = QuantizeLinear(x, sx, zero_u8)
  xd = DequantizeLinear(xq, sx, zero_u8)
  wd = DequantizeLinear(w, sw, zero_i8)
  BIAS
  y = Conv(xd, wd, bd)
  yq = QuantizeLinear(y, sy, zero_u8)
  out = DequantizeLinear(yq, sy, zero_u8)
}"""
rng = np.random.default_rng(0)
sx, sw, sy = np.float32(0.02), np.float32(0.003), np.float32(0.1)
weights = rng.integers(-127, 127, (32, 32, 3, 3)).astype(np.int8)
bias = rng.normal(size=32).astype(np.float32)
values = {"w": weights, "sx": sx, "sw": sw, "sy": sy, "zero_u8": np.uint8(128), "zero_i8": np.int8(0)}
biases = {
    "float": ("", {"bd": bias}),
    "int32": ("bd = DequantizeLinear(b, sb)", {"b": np.rint(bias / (sx * sw)).astype(np.int32), "sb": sx * sw}),
}
kernels = {}
for kind, (line, extra) in biases.items():
    model = parser.parse_model(GRAPH.replace("BIAS", line))
    tensors = {**values, **extra}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items())
    onnx.checker.check_model(model, full_check=True)
    for disabled in ([], ["WeightBiasQuantization"]):
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = "optimized.onnx"
        ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"], disabled_optimizers=disabled)
        types = [node.op_type for node in onnx.load("optimized.onnx").graph.node]
        kernels[kind, bool(disabled)] = next(name for name in types if "Conv" in name)
        print(f"happened: {kind} bias, disabled {disabled}: {' '.join(types)}")
stated = {("float", False): "QLinearConv", ("float", True): "Conv"}
stated |= {("int32", False): "QLinearConv", ("int32", True): "QLinearConv"}
if kernels != stated:
    sys.exit(f"no longer as stated: the convolutions run as {kernels}")
PY
