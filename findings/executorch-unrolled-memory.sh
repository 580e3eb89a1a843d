#!/usr/bin/env bash
# An opened ExecuTorch file keeps one packed copy of a layer's weights for each call of the layer, not for each layer.
#
# Versions: executorch 1.5.1, torch 2.15.0, on Linux.
#
# Three models call the same Linear layer 1, 4 and 16 times, as an unrolled recurrent network does. Each file stores the
# weights of 1 MB once. XNNPACK packs them when the method is loaded, for each call again: the process grows by 1, 4 and
# 16 MB.
#
# Why it surprises: the file's size and torch's own memory suggest one copy. An exported LSTM is always unrolled, so its
# memory grows with the sequence's length, and so does the time of opening. The Python runtime has no argument that
# turns on XNNPACK's cache of weights.
#
# Cost: a recurrent layer of 1,024 units, unrolled for 64 steps, needs a gigabyte for weights of 16 MB.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --quiet torch==2.15.0 torchao==0.18.0 flatbuffers==25.12.19 ruamel.yaml==0.19.1 \
    tabulate==0.10.0 pandas==3.1.1 pyyaml==6.0.3 packaging==26.3
"$work/venv/bin/pip" install --quiet --quiet --no-deps executorch==1.5.1
cd "$work"
cat > measure.py <<'PY'
import re
import sys
from pathlib import Path

import torch
from executorch.runtime import Runtime


def anonymous_bytes():
    return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024


inputs = (torch.ones(1, 512),)
Runtime.get().load_program(Path("calls-0.pte")).load_method("forward").execute((inputs[0] * 1,))
before = anonymous_bytes()
method = Runtime.get().load_program(Path(sys.argv[1])).load_method("forward")
method.execute(inputs)
print((anonymous_bytes() - before) / 2**20)
PY
"$work/venv/bin/python" - 2>stderr.txt <<'PY' || { code=$?; tail -n 5 stderr.txt; exit "$code"; }
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

print(*(f"{name} {version(name)}" for name in ("executorch", "torch")))
print("expected: the memory is about 1 MB for 1, 4 and 16 calls of a layer whose weights have 1 MB")


class Calls(torch.nn.Module):
    def __init__(self, number, width):
        super().__init__()
        self.number, self.layer = number, torch.nn.Linear(width, width)

    def forward(self, x):
        for _ in range(self.number):
            x = torch.tanh(self.layer(x))
        return x


sizes, memory = {}, {}
for number in (0, 1, 4, 16):
    model = Calls(number, 512) if number else torch.nn.Tanh()
    program = to_edge_transform_and_lower(
        torch.export.export(model.eval(), (torch.ones(1, 512),)), partitioner=[XnnpackPartitioner()]
    )
    path = Path(f"calls-{number}.pte")
    path.write_bytes(program.to_executorch().buffer)
    if number:
        sizes[number] = path.stat().st_size / 2**20
        run = subprocess.run([sys.executable, "measure.py", path], capture_output=True, text=True, check=True)
        memory[number] = float(run.stdout.split()[-1])
        print(f"happened: {number:2d} calls: file {sizes[number]:.2f} MB, memory {memory[number]:.1f} MB")
if sizes[16] > 1.2 or memory[16] < 10 or memory[1] > 3:
    sys.exit("no longer as stated: the memory does not grow with the number of calls, or the file does")
PY
