#!/usr/bin/env bash
# ExecuTorch reads a channels-last image as if its values were in contiguous order.
#
# Versions: executorch 1.5.1, torch 2.15.0, numpy 2.4.6.
#
# The model was exported with a contiguous example. A transposed input is refused: it "should be contiguous or
# channels-last". An image in channels-last order is accepted, and its memory is read in the wrong order, with XNNPACK
# and with portable kernels. After .contiguous() the outputs are right. pytorch/executorch#21837 reports it.
#
# Why it surprises: the message names channels-last as allowed, and the runtime checks shape and type of every input.
# An image becomes channels-last without being asked to: an array of rows, columns and colours, permuted for torch.
#
# Cost: wrong outputs of the right shape for images that were read from files, while tests with torch.randn pass.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --quiet torch==2.15.0 numpy==2.4.6 torchao==0.18.0 flatbuffers==25.12.19 ruamel.yaml==0.19.1 \
    tabulate==0.10.0 pandas==3.1.1 pyyaml==6.0.3 packaging==26.3
"$work/venv/bin/pip" install --quiet --quiet --no-deps executorch==1.5.1
cd "$work"
"$work/venv/bin/python" - 2>stderr.txt <<'PY' || { code=$?; tail -n 5 stderr.txt; exit "$code"; }
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime

print(*(f"{name} {version(name)}" for name in ("executorch", "torch", "numpy")))
print("expected: an input in another order is converted or refused")


def open_file(lowered):
    """Open a program from a file: a method does not keep alive the bytes that its program was loaded from."""
    path = Path(f"model-{len(list(Path().glob('model-*.pte')))}.pte")
    path.write_bytes(lowered.to_executorch().buffer)
    return Runtime.get().load_program(path).load_method("forward")


torch.manual_seed(0)
model = torch.nn.Conv2d(3, 16, 3, padding=1).eval()
pixels = np.random.default_rng(0).random((8, 8, 3), dtype=np.float32)
image = torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)
exact = model(image).detach()
errors = {}
for name, partitioner in (("xnnpack", [XnnpackPartitioner()]), ("portable", [])):
    program = to_edge_transform_and_lower(
        torch.export.export(model, (torch.randn(1, 3, 8, 8),)), partitioner=partitioner
    )
    method = open_file(program)
    for order, inputs in (("permuted", image), ("contiguous", image.contiguous())):
        errors[name, order] = ((method.execute((inputs,))[0] - exact).norm() / exact.norm()).item()
        print(f"happened: {name}, {order} image: relative error {errors[name, order]:.1e}")
    try:
        method.execute((image.contiguous().transpose(2, 3),))
        refused = False
    except RuntimeError as error:
        refused = True
        print(f"happened: {name}, transposed image: {str(error).strip()}")
wrong = min(error for (_, order), error in errors.items() if order == "permuted")
right = max(error for (_, order), error in errors.items() if order == "contiguous")
if wrong < 0.1 or right > 1e-5 or not refused:
    sys.exit("no longer as stated: the permuted image is read correctly, or another case has changed")
PY
