#!/usr/bin/env bash
# If one axis of an input is dynamic, the lengths of its other axes are not checked.
#
# Versions: executorch 1.5.1, torch 2.15.0.
#
# An LSTM is exported for one step and for 1 to 8 sequences. torch.export's own program refuses three steps. The file
# accepts them and computes one step of the first values. If all axes are fixed, the file refuses three steps as well.
#
# Why it surprises: other shapes are refused with an error, and the exported program declares the length of the axis.
#
# Cost: wrong outputs, without an error, for every length but one of a model that can only have one length.
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

print(*(f"{name} {version(name)}" for name in ("executorch", "torch")))
print("expected: a file for one step refuses three steps")


def open_file(lowered):
    """Open a program from a file: a method does not keep alive the bytes that its program was loaded from."""
    path = Path(f"model-{len(list(Path().glob('model-*.pte')))}.pte")
    path.write_bytes(lowered.to_executorch().buffer)
    return Runtime.get().load_program(path).load_method("forward")


torch.manual_seed(0)
model = torch.nn.LSTM(4, 8).eval()
batch = torch.export.Dim("batch", min=1, max=8)
refused = {}
for name, shapes in (("dynamic", ({1: batch},)), ("fixed", None)):
    program = torch.export.export(model, (torch.randn(1, 2, 4),), dynamic_shapes=shapes)
    method = open_file(to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]))
    steps = torch.randn(3, 2, 4)
    try:
        outputs = method.execute((steps,))
        refused[name] = False
        print(f"happened: {name} batch: three steps are accepted, the outputs have the shape {list(outputs[0].shape)}")
    except RuntimeError as error:
        refused[name] = True
        print(f"happened: {name} batch: {str(error).strip()}")
    try:
        program.module()(steps)
        sys.exit("no longer as stated: the exported program accepts three steps")
    except AssertionError as error:
        print(f"happened: {name} batch, exported program: {str(error).splitlines()[0]}")
if refused != {"dynamic": False, "fixed": True}:
    sys.exit("no longer as stated: three steps are refused, or accepted by a file with fixed axes")
PY
