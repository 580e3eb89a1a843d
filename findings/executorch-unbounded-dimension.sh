#!/usr/bin/env bash
# ExecuTorch bounds a dynamic dimension without a maximum by the size of the example inputs.
#
# Versions: executorch 1.5.1, torch 2.15.0.
#
# The batch is exported as a dynamic dimension, as Dim("batch"), Dim.AUTO or Dim.DYNAMIC, with an example of four rows.
# The exported program takes a hundred rows. Lowering prints nothing. The file takes one to four rows and refuses five.
# With Dim("batch", max=8) it takes eight. The bound is on the number of elements: with two dynamic dimensions, a batch
# above its maximum is accepted if the other dimension is small, and the outputs are right.
#
# Why it surprises: a missing maximum reads as no limit, and the exported program says int_oo. The example inputs
# otherwise determine only ranks and types. The exception names only a code, and the reason goes to stderr.
#
# Cost: a service whose tests use batches up to the example's fails with the first larger one. The example that people
# export with is one row.
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
from torch.export import Dim

print(*(f"{name} {version(name)}" for name in ("executorch", "torch")))
print("expected: without a maximum, every batch is accepted, or the program is refused when it is lowered")
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()


def open_file(lowered):
    """Open a program from a file: a method does not keep alive the bytes that its program was loaded from."""
    path = Path(f"model-{len(list(Path().glob('model-*.pte')))}.pte")
    path.write_bytes(lowered.to_executorch().buffer)
    return Runtime.get().load_program(path).load_method("forward")


def accepts(method, *shape):
    rows = torch.randn(*shape)
    try:
        outputs = method.execute((rows,))[0]
    except RuntimeError as error:
        return str(error).strip().rpartition(" ")[2]
    assert torch.allclose(outputs, model(rows), atol=1e-5)
    return "right"


def lower(example, *dims):
    program = torch.export.export(model, (example,), dynamic_shapes=(dict(enumerate(dims)),))
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    return open_file(lowered), program


changed = False
with torch.no_grad():
    dims = {'Dim("batch")': Dim("batch"), "Dim.AUTO": Dim.AUTO, "Dim.DYNAMIC": Dim.DYNAMIC, "max=8": Dim("batch", max=8)}
    for name, dim in dims.items():
        method, program = lower(torch.randn(4, 8), dim)
        results = {rows: accepts(method, rows, 8) for rows in (1, 4, 5, 8)}
        exported = "" if name == "max=8" else f", exported program with 100: {len(program.module()(torch.randn(100, 8)))}"
        print(f"happened: {name}: {results}{exported}")
        changed |= [result == "right" for result in results.values()] != [True, True, *[name == "max=8"] * 2]
    method, _ = lower(torch.randn(4, 8, 8), Dim("batch", max=8), Dim("time", max=16))
    beyond = accepts(method, 16, 4, 8)
    print(f"happened: maxima 8 and 16, called with 16 and 4: {beyond}")
if changed or beyond != "right":
    sys.exit("no longer as stated: other sizes are accepted")
PY
