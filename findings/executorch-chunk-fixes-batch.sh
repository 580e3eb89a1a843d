#!/usr/bin/env bash
# A model that splits features with `chunk` takes only the example's batch after lowering.
#
# Versions: executorch 1.5.1, torch 2.15.0.
#
# The batch is exported with a maximum of 64, and the example has 2 rows. If the outputs of a Linear layer are halved
# with `chunk` along their second axis, the lowered file takes 2 rows, but not 1 or 5. Halved with two slices, they
# take all three. For an operator that returns several tensors, ExecuTorch's check of types reads the first tensor as if
# it were the list of tensors. The length of that tensor is the batch, and by asking for it, the check fixes the batch.
# Without the check (`EdgeCompileConfig(_check_ir_validity=False)`), the file with the chunk takes all three too.
#
# Why it surprises: a check of a program changes the program, and neither lowering nor loading says anything.
#
# Cost: GRU layers, and transformers that split queries, keys and values, run with the example's batch only.
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
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.runtime import Runtime

print(*(f"{name} {version(name)}" for name in ("executorch", "torch")))
print("expected: each file takes 1, 2 and 5 rows")


class Gate(torch.nn.Module):
    """A Linear layer whose first half of outputs is multiplied by the second half."""

    def __init__(self, chunk):
        super().__init__()
        self.chunk, self.layer = chunk, torch.nn.Linear(4, 8)

    def forward(self, rows):
        wide = self.layer(rows)
        left, right = wide.chunk(2, dim=1) if self.chunk else (wide[:, :4], wide[:, 4:])
        return left * right


def taken(chunk, is_checked):
    """Lower the model after an example of two rows; return the numbers of rows that the file computes."""
    torch.manual_seed(0)
    model = Gate(chunk).eval()
    shapes = ({0: torch.export.Dim("rows", min=1, max=64)},)
    program = torch.export.export(model, (torch.randn(2, 4),), dynamic_shapes=shapes)
    config = EdgeCompileConfig(_check_ir_validity=is_checked)
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()], compile_config=config)
    path = Path(f"model-{chunk}-{is_checked}.pte")  # a method does not keep alive bytes that a program was loaded from
    path.write_bytes(lowered.to_executorch().buffer)
    method = Runtime.get().load_program(path).load_method("forward")
    counts = []
    for count in (1, 2, 5):
        rows = torch.randn(count, 4)
        try:
            assert torch.allclose(method.execute((rows,))[0], model(rows), atol=1e-5)
        except RuntimeError:
            continue
        counts.append(count)
    return counts


found = {form: taken(*form) for form in ((True, True), (False, True), (True, False))}
for (chunk, is_checked), counts in found.items():
    form, checked = "chunk" if chunk else "slices", "checked" if is_checked else "not checked"
    print(f"happened: {form}, {checked}: the file takes {counts} rows")
if found != {(True, True): [2], (False, True): [1, 2, 5], (True, False): [1, 2, 5]}:
    sys.exit("no longer as stated: a split does not fix the batch, or slices do, or the check does not matter")
PY
