#!/usr/bin/env bash
# A convolution that is lowered with fewer than 16 images limits the batch to 15.
#
# Versions: executorch 1.5.1, torch 2.15.0.
#
# The batch is exported with a maximum of 256, and torch.export confirms the range. Lowered to XNNPACK after an example
# of 2 images, the file refuses 16; after an example of 16 images, it takes 256. Lowering traces the convolution again,
# where torch asks whether there are fewer than 16 images to choose a kernel, and the answer becomes a bound.
#
# Why it surprises: the exported program has the range from 1 to 256, and lowering says nothing.
#
# Cost: an application that sends larger batches fails with an error code after all tests with small batches passed.
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
print("expected: the file takes as many images as the exported program")


def open_file(lowered):
    """Open a program from a file: a method does not keep alive the bytes that its program was loaded from."""
    path = Path(f"model-{len(list(Path().glob('model-*.pte')))}.pte")
    path.write_bytes(lowered.to_executorch().buffer)
    return Runtime.get().load_program(path).load_method("forward")


torch.manual_seed(0)
model = torch.nn.Conv2d(3, 8, 3).eval()
most = {}
for example in (2, 16):
    batch = torch.export.Dim("batch", min=1, max=256)
    program = torch.export.export(model, (torch.randn(example, 3, 8, 8),), dynamic_shapes=({0: batch},))
    method = open_file(to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]))
    for count in (1, 15, 16, 256):
        images = torch.randn(count, 3, 8, 8)
        try:
            assert torch.allclose(method.execute((images,))[0], model(images), atol=1e-5)
        except RuntimeError:
            break
        most[example] = count
    ranges = list(program.range_constraints.values())
    print(f"happened: range {ranges}, example of {example}: up to {most[example]} images")
if most != {2: 15, 16: 256}:
    sys.exit("no longer as stated: the example does not limit the batch, or limits it to another number")
PY
