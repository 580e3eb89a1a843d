#!/usr/bin/env bash
# ExecuTorch's XNNPACK delegate drops the scale and the bias of a Linear layer whose weight is a torchao int8 tensor.
#
# Versions: executorch 1.5.1, torch 2.15.0, torchao 0.18.0.
#
# torchao's quantize_ with Int8WeightOnlyConfig replaces a weight by a tensor subclass. The quantized module and its
# exported program are right. Lowered with XnnpackPartitioner, the file contains one delegate, no operator is left
# outside, and nothing is printed. The file returns x @ q.T, where q are the integers of the weight: without the scale
# and without the bias. Lowered without the partitioner, the same program is right. It is also right with XNNPACK after
# torchao.utils.unwrap_tensor_subclass(model). IntxWeightOnlyConfig fails in the same way.
#
# The cause is ConvertToLinearPass in backends/xnnpack/_passes: it finds the matrix product in the nodes that came from
# one nn.Linear and replaces the last of these nodes by linear(input, weight), whatever lies between the two. An
# nn.Linear whose forward was replaced by (x @ weight.T) * scale + bias is wrong too.
#
# Why it surprises: the docstring calls unwrap_tensor_subclass a workaround for torch.export, but torch.export accepts
# the module without it. Int8DynamicActivationIntxWeightConfig (weights of 4 bits, int8 activations) needs no such call.
#
# Cost: outputs of the right shape that are a thousand times too large for each layer. Only a comparison with the
# module's outputs shows it.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --quiet torch==2.15.0 torchao==0.18.0 flatbuffers==25.12.19 ruamel.yaml==0.19.1 \
    tabulate==0.10.0 pandas==3.1.1 pyyaml==6.0.3 packaging==26.3
"$work/venv/bin/pip" install --quiet --quiet --no-deps executorch==1.5.1
cd "$work"
"$work/venv/bin/python" - 2>stderr.txt <<'PY' || { code=$?; tail -n 5 stderr.txt; exit "$code"; }
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from torchao.utils import unwrap_tensor_subclass

print(*(f"{name} {version(name)}" for name in ("executorch", "torch", "torchao")))
print("expected: all three files return what the quantized module returns, up to float rounding")
torch.manual_seed(0)
inputs = torch.randn(4, 64)


def open_file(lowered):
    """Open a program from a file: a method does not keep alive the bytes that its program was loaded from."""
    path = Path(f"model-{len(list(Path().glob('model-*.pte')))}.pte")
    path.write_bytes(lowered.to_executorch().buffer)
    return Runtime.get().load_program(path).load_method("forward")


def module():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32)).eval()
    quantize_(model, Int8WeightOnlyConfig())
    return model


def run(model, partitioner):
    program = to_edge_transform_and_lower(torch.export.export(model, (inputs,)), partitioner=partitioner)
    return open_file(program).execute((inputs,))[0]


def error(outputs, exact):
    return ((outputs - exact).norm() / exact.norm()).item()


with torch.no_grad():
    exact = module()(inputs)
    weight = module()[0].weight
    integers = inputs @ weight.qdata.float().T
files = {
    "portable": run(module(), []),
    "xnnpack": run(module(), [XnnpackPartitioner()]),
    "xnnpack, unwrapped": run(unwrap_tensor_subclass(module()), [XnnpackPartitioner()]),
}
errors = {name: error(outputs, exact) for name, outputs in files.items()}
for name, value in errors.items():
    print(f"happened: {name}: relative error {value:.1e}")
print(f"happened: xnnpack against the product with the integers alone: {error(files['xnnpack'], integers):.1e}")
right = max(errors["portable"], errors["xnnpack, unwrapped"])
if right > 1e-5 or errors["xnnpack"] < 10 or error(files["xnnpack"], integers) > 1e-5:
    sys.exit("no longer as stated: the XNNPACK file is right, or another file is wrong too")
PY
