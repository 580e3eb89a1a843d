"""Which way of running float models avoids torch's slow kernels, and for which shapes are these kernels slow?

    python -m benchmarks.slow_convolutions [--only layers|models]

The first table times ``Conv2d(c, c, 3, padding=1)``, the second table complete models and other layers, on one thread.
Each cell is the processor time of a way divided by that of the fastest way in the same round, with the 95% interval of
the median over rounds. A pair's time is the time per picture.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import random
import statistics
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils import mkldnn
from torch.utils._pytree import tree_leaves

from benchmarks import peers
from benchmarks.runtimes import Subject, median_interval
from tasks.data.outputs import intra_op_threads
from tasks.environment.machine import this_machine
from tasks.quantize.coverage import ChannelsLast
from tasks.runtimes.aot_inductor.make import compile_package
from tasks.runtimes.aot_inductor.open import open_package
from tasks.runtimes.eager.open import profile_torch
from tasks.values.proofs import most_expensive_floats

CHANNELS, SIDES = (64, 256, 512), (2, 4, 7, 14)
AS_IS, PAIR, LAST = "as is", "as is, of a pair", "TorchScript, channels-last"
LAYER_WAYS = (AS_IS, PAIR, "channels-last", "oneDNN graph", "`to_mkldnn`", "packed once")
MODEL_WAYS = (AS_IS, "without oneDNN", "TorchScript", LAST, "oneDNN graph", "ONNX Runtime", "aot-inductor")
BLOCK_S, WARM_UP, ROUNDS, FORM = 0.01, 3, 41, "{:.2f} ({:.2f}–{:.2f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("layers", "models"), help="print one of the tables (default: both)")
    only = parser.parse_args().only
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    print(f"{this_machine().cpu}; torch {torch.__version__}.\n")
    with tempfile.TemporaryDirectory() as folder, intra_op_threads(1), torch.no_grad():
        if only != "models":
            print(f"| channels, positions | fastest µs | {' | '.join(LAYER_WAYS)} |")
            for channels, side in itertools.product(CHANNELS, SIDES):
                layer, picture = nn.Conv2d(channels, channels, 3, padding=1), torch.randn(1, channels, side, side)
                ways = layer_ways(layer, picture)
                print(line(f"{channels}, {side} × {side}", LAYER_WAYS, ways), flush=True)
                check(layer, picture, ways)
        if only != "layers":
            print(f"\n| model | fastest µs | {' | '.join(MODEL_WAYS)} | kernel as is |")
            for name, (model, inputs) in models().items():
                ways = model_ways(model, inputs, Path(folder))
                [kernel, *_] = most_expensive_floats(profile_torch(ways[AS_IS].call, 20))
                print(line(name, MODEL_WAYS, ways), f"`{kernel.type}` {kernel.share:.0%} |", flush=True)
                check(model, inputs, ways)


def layer_ways(layer: nn.Conv2d, picture: Tensor) -> dict[str, Subject]:
    """The ways to run a convolution; ``packed once`` calls oneDNN with packed weights, as compiled packages do."""
    ones, pair, picture_last = [1, 1], torch.cat([picture] * 2), picture.to(memory_format=torch.channels_last)
    last = copy.deepcopy(layer).to(memory_format=torch.channels_last)
    graph = torch.jit.optimize_for_inference(torch.jit.trace(layer.eval(), picture))
    opaque, weight = mkldnn.to_mkldnn(copy.deepcopy(layer)), layer.weight.detach()
    weight = torch.ops.mkldnn._reorder_convolution_weight(weight, ones, ones, ones, 1, list(picture.shape))
    packed = torch.ops.mkldnn._convolution_pointwise
    calls = (
        lambda: layer(picture),
        lambda: layer(pair),
        lambda: last(picture_last),
        lambda: graph(picture),
        lambda: opaque(picture.to_mkldnn()).to_dense(),
        lambda: packed(picture, weight, layer.bias, ones, ones, ones, 1, "none", [], ""),
    )
    return dict(zip(LAYER_WAYS, map(Subject, calls), strict=True))


def models() -> dict[str, tuple[nn.Module, Tensor]]:
    """Complete models and other layers, with random weights."""
    import torchvision

    return {
        "ResNet-18, 32 × 32": (torchvision.models.resnet18(), torch.randn(1, 3, 32, 32)),
        "ResNet-18, 224 × 224": (torchvision.models.resnet18(), torch.randn(1, 3, 224, 224)),
        "MobileNet-V3-small, 224 × 224": (torchvision.models.mobilenet_v3_small(), torch.randn(1, 3, 224, 224)),
        "Conv3d(64, 64, 3), 4 × 4 × 4": (nn.Conv3d(64, 64, 3, padding=1), torch.randn(1, 64, 4, 4, 4)),
        "ConvTranspose2d(256, 128, 2), 4 × 4": (nn.ConvTranspose2d(256, 128, 2, 2), torch.randn(1, 256, 4, 4)),
        "LSTM(512, 512), 1 step": (nn.LSTM(512, 512), torch.randn(1, 1, 512)),
        "LSTM(512, 512), 25 steps": (nn.LSTM(512, 512), torch.randn(25, 1, 512)),
    }


def model_ways(model: nn.Module, inputs: Tensor, folder: Path) -> dict[str, Subject]:
    """The ways to run a model; channels-last is only for pictures."""
    package, exported = folder / "model.pt2", folder / "model.onnx"
    compile_package(torch.export.export(copy.deepcopy(model.eval()), (inputs,)), package)
    torch.onnx.export(model, (inputs,), exported, dynamo=False)
    traced = torch.jit.trace(model, inputs)
    calls = {AS_IS: model, "TorchScript": torch.jit.freeze(traced)}
    if inputs.dim() == 4:
        last = torch.jit.trace(ChannelsLast(copy.deepcopy(model)).eval(), inputs)
        calls[LAST] = torch.jit.freeze(last)
    calls["oneDNN graph"] = torch.jit.optimize_for_inference(traced)
    calls |= {"aot-inductor": open_package(package), "ONNX Runtime": peers.onnxruntime(exported)}
    ways = {name: Subject(partial(call, inputs)) for name, call in calls.items()}
    return ways | {"without oneDNN": Subject(partial(model, inputs), peers.without_onednn)}


def check(model: nn.Module, inputs: Tensor, ways: dict[str, Subject]) -> None:
    """Assert that every way's first output is within 1e-5 of the largest magnitude in float64."""
    right = tree_leaves(copy.deepcopy(model).double()(inputs.double()))[0]
    for name, way in ways.items():
        output = torch.as_tensor(tree_leaves(way.call())[0])[: len(right)]
        off = (output.double() - right).abs().max() / right.abs().max()
        assert off < 1e-5, f"{name}: {off:.1e}"


def line(name: str, columns: tuple[str, ...], ways: dict[str, Subject]) -> str:
    """Time the ways in turn, in blocks of at least `BLOCK_S` of processor time, and return a line of the table."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(WARM_UP + ROUNDS):
        for way in random.sample(list(ways), len(ways)):
            with ways[way].scope(), torch.inference_mode():
                calls, began = 0, time.process_time()
                while (spent := time.process_time() - began) < BLOCK_S:
                    ways[way].call()
                    calls += 1
            seconds[way].append(spent / calls / (2 if way == PAIR else 1))
    seconds = {way: each[WARM_UP:] for way, each in seconds.items()}
    best = min(seconds, key=lambda way: statistics.median(seconds[way]))
    cells = dict.fromkeys(columns, "–")
    for way, each in seconds.items():
        ratios = [one / fastest for one, fastest in zip(each, seconds[best], strict=True)]
        cells[way] = "1" if way == best else FORM.format(statistics.median(ratios), *median_interval(ratios))
    return f"| {name} | {1e6 * statistics.median(seconds[best]):,.0f} | {' | '.join(cells.values())} |"


if __name__ == "__main__":
    main()
