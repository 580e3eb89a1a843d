#!/usr/bin/env bash
# ONNX Runtime quantizes a float convolution that nobody quantized, if its neighbours are quantized.
#
# Versions: onnxruntime 1.31.1, onnx 1.23.2.
#
# The convolution has float weights: a recipe excluded it from quantization, because one of its channels is much larger
# than the others. Its input comes from a DequantizeLinear and its output goes to a QuantizeLinear, as always between
# quantized layers. At load, the default optimizer WeightBiasQuantization rounds the float weights to int8 with one
# scale for the tensor, and the convolution runs as a QLinearConv. The session prints no warning.
#
# Why it surprises: an optimizer is expected to keep the numbers up to float rounding. The file says float, and the
# exclusion had the purpose of protecting these weights.
#
# Cost: the excluded layer loses its accuracy again, only in the deployed session and not in the file. Searching for the
# layers that are sensitive to quantization shows no effect, because excluding a layer changes nothing.
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
print("expected: a default session computes the convolution in float, as the file says")
GRAPH = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,32,28,28] x) => (float[1,32,26,26] out) {
  xq = QuantizeLinear(x, sx, zero)
  xd = DequantizeLinear(xq, sx, zero)
  y = Conv(xd, w, b)
  yq = QuantizeLinear(y, sy, zero)
  out = DequantizeLinear(yq, sy, zero)
}"""
rng = np.random.default_rng(0)
weights = (rng.normal(size=(32, 32, 3, 3)) * 0.05).astype(np.float32)
weights[0] *= 100  # the large channel, for which the layer was excluded
values = {"w": weights, "b": np.zeros(32, np.float32), "sx": np.float32(0.03), "sy": np.float32(0.05)}
model = parser.parse_model(GRAPH)
tensors = {**values, "zero": np.uint8(128)}
model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items())
onnx.checker.check_model(model, full_check=True)
inputs = rng.normal(size=(1, 32, 28, 28)).astype(np.float32)
outputs, kernels = [], []
for disabled in (["WeightBiasQuantization"], []):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = "optimized.onnx"
    session = ort.InferenceSession(
        model.SerializeToString(), options, ["CPUExecutionProvider"], disabled_optimizers=disabled
    )
    outputs.append(session.run(None, {"x": inputs})[0][:, 1:])  # the channels of ordinary size
    types = [node.op_type for node in onnx.load("optimized.onnx").graph.node]
    kernels.append(next(name for name in types if "Conv" in name))
    print(f"happened: disabled {disabled}: {' '.join(types)}")
error = np.linalg.norm(outputs[1] - outputs[0]) / np.linalg.norm(outputs[0])
print(f"happened: relative error of the default session in the 31 ordinary channels: {error:.2f}")
if kernels != ["Conv", "QLinearConv"] or error < 0.1:
    sys.exit("no longer as stated: the default session leaves the float convolution in float")
PY
