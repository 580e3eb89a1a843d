#!/usr/bin/env bash
# Every model that FX graph mode or PT2E has prepared or converted stays in memory until the process ends.
#
# Versions: torch 2.15.0, torchao 0.18.0.
#
# A model of 64 MiB is quantized statically, and then every variable that holds it is deleted. After a garbage
# collection, all its weights are still there, both with `prepare_fx` and `convert_fx` of torch.ao.quantization and with
# `prepare_pt2e` and `convert_pt2e` of torchao. Both libraries look up a model's device in a function that is decorated
# with `functools.cache`, and the model is the cache's key. If the caches are cleared, the weights are freed.
#
# Why it surprises: quantization is a function from one model to another, and the cached value is only a device.
#
# Cost: a process that tries several recipes, as a search or a nightly worker does, grows by about one float model for
# each.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --quiet torch==2.15.0 torchao==0.18.0
cd "$work"
"$work/venv/bin/python" - 2>stderr.txt <<'PY' || { code=$?; tail -n 5 stderr.txt; exit "$code"; }
import gc
import sys
import weakref
from importlib.metadata import version

import torch
import torchao.utils
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.fx import utils
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    X86InductorQuantizer,
    get_default_x86_inductor_quantization_config,
)

print(*(f"{name} {version(name)}" for name in ("torch", "torchao")))
print("expected: no weight is left in memory")


def network():
    layers = [torch.nn.Linear(2048, 2048) for _ in range(4)]
    return torch.nn.Sequential(*layers).eval()


def with_fx(model, inputs):
    prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), inputs)
    prepared(*inputs)
    convert_fx(prepared)(*inputs)


def with_pt2e(model, inputs):
    quantizer = X86InductorQuantizer()
    quantizer.set_global(get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, inputs).module(), quantizer)
    prepared(*inputs)
    convert_pt2e(prepared)(*inputs)


def left(quantize, clear):
    """Return how many of a model's weights are in memory after the model was quantized and deleted."""
    model = network()
    weights = [weakref.ref(weight) for weight in model.parameters()]
    quantize(model, (torch.randn(2, 2048),))
    del model
    if clear:
        utils.assert_and_get_unique_device.cache_clear()
        torchao.utils._assert_and_get_unique_device.cache_clear()
    gc.collect()
    return sum(weight() is not None for weight in weights), len(weights)


found = {}
for name, quantize in {"FX": with_fx, "PT2E": with_pt2e}.items():
    for clear in (False, True):
        count, of = found[name, clear] = left(quantize, clear)
        print(f"happened: {name}, caches {'cleared' if clear else 'as they are'}: {count} of {of} weights are left")
if any(count != (0 if clear else of) for (_, clear), (count, of) in found.items()):
    sys.exit("no longer as stated: the weights are freed, or clearing the caches does not free them")
PY
