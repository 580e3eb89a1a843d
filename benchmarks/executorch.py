"""ExecuTorch beside the other runtimes, and forms of its programs: tables of docs/measured-runtimes.md.

    python -m benchmarks.executorch night STORE [--profile quick]
    python -m benchmarks.executorch forms
    python -m benchmarks.executorch networks

Install the `executorch` extra before. `night` trains four models and runs a night with every runtime: the built-in
workloads `resnet18`, `python-text` and `word-lm`, and MobileNetV3 on the characters of `resnet18`. It prints the gains
with their 95% intervals, the loss of quality, memory, and the speed-up with cold caches.

`forms` times programs on one thread, each in blocks of 0.05 s in random order in 15 rounds, and prints medians: an
unrolled LSTM (2 layers of 128, 2,000 words) for several lengths, in files of their own and in one file, float and with
int8 products; and Linear layers with weights of 8 and 4 bits. "Off" is the Euclidean distance from the float outputs,
relative to them. Weights are random.

`networks` quantizes networks of torchvision statically and prints distances of outputs, as fractions of their range:
between the program, torchao's reference (the quantized module in torch), OpenVINO and the float model.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import torch
import torchvision
from torch import Tensor, nn
from torch.export import ExportedProgram

from flows.commands import toml
from tasks.data.outputs import Call, distance, intra_op_threads
from tasks.run.quantize import quantize
from tasks.runtimes.base import CandidateFiles, runtime_named

WORKLOADS = Path(__file__).parents[1] / "flows" / "workloads"
ALL = ("torchscript", "onnxruntime", "openvino", "aot-inductor", "executorch")
PER_ROW = ("aot-inductor", "executorch")
Recipes = dict[str, tuple[str, tuple[str, ...]]]  # the keys of a recipe, and its runtimes
FLOAT_AND_ROWS: Recipes = {
    "float": ('method = "none"', ALL),
    "dynamic": ('method = "dynamic"', ALL[:3]),
    "per-row": ('method = "dynamic-per-row"', PER_ROW),
    "4-bit": ('method = "dynamic-per-row"\nlinear_bits = 4', ("executorch",)),
}
IMAGES: Recipes = {"float": ('method = "none"', ALL), "static": ('method = "static"', ALL)}
RECIPES: dict[str, Recipes] = {
    "resnet18": IMAGES,
    "mobilenet": IMAGES,
    "python-text": FLOAT_AND_ROWS | {"static": ('method = "static"', ("onnxruntime", "openvino", "executorch"))},
    "word-lm": FLOAT_AND_ROWS,
}
NETWORKS = ("resnet18", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x1_0", "squeezenet1_1")
LENGTHS, WIDTH, WORDS = (1, 8, 25), 128, 2000
ROUNDS, BLOCK_S = 15, 0.05
_RECIPES = re.compile(r"\[\[recipe\]\].*?(?=^\[[a-z])", re.DOTALL | re.MULTILINE)
_TABLE = """
    select workload, candidate, latency_s, runtime_gain, runtime_gain_low, runtime_gain_high,
        int8_gain, int8_gain_low, int8_gain_high, speedup, coalesce(quality_difference, 0), peak_rss_bytes, cold_speedup
    from outcomes where run_id = (select max_by(run_id, started_at) from runs) and setting = 'primary' and status = 'ok'
    order by workload, speedup desc
"""


def workload(name: str) -> str:
    """Return a workload file with the recipes of `RECIPES`."""
    text = (WORKLOADS / f"{name.replace('mobilenet', 'resnet18')}.toml").read_text(encoding="utf-8")
    recipes = "".join(
        f"[[recipe]]\nname = {toml(recipe)}\n{keys}\nruntimes = {toml(list(runtimes))}\n\n"
        for recipe, (keys, runtimes) in RECIPES[name].items()
    )
    text = _RECIPES.sub(lambda _: recipes, text, count=1).replace("[benchmark.capacity]\n", "")
    if name == "mobilenet":
        text = text.replace('name = "resnet18"', 'name = "mobilenet"', 1).replace('"resnet18"', '"mobilenet_v3_large"')
    # An unrolled LSTM takes only the benchmark's length, so words are evaluated one by one.
    return text.replace('mode = "segments"\nsegments = 8\nwarm_up = 64', 'mode = "exact"\nsequence_length = 1')


def night(store: Path, profile: str) -> None:
    """Run the night and print its table."""
    store.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "flows", "nightly", "--store", str(store), "--profile", profile]
    for name in RECIPES:
        file = store / f"{name}.toml"
        file.write_text(workload(name), encoding="utf-8")
        command += ["--workload", str(file)]
    subprocess.run(command, check=False)  # a candidate may fail, which the run names
    with duckdb.connect(str(store / "results.duckdb"), read_only=True) as results:
        rows = results.execute(_TABLE).fetchall()
    print("\n| model | candidate | ms | runtime | int8 | together | quality | MB of memory | together, cold |")
    print(f"|---|---|{'---:|' * 7}")
    for model, candidate, latency_s, *gains, speedup, lost, peak, cold in rows:
        runtime, int8 = (f"{g:.2f} ({low:.2f}–{high:.2f})" for g, low, high in (gains[:3], gains[3:]))
        cells = (f"{latency_s * 1e3:.3g}", runtime, int8, f"{speedup:.2f}", f"{lost:+.2g}", f"{peak / 1e6:.0f}")
        print(f"| {model} | {candidate} | {' | '.join(cells)} | {cold:.2f} |")


class Words(nn.Module):
    """The tutorial's word model with a state, in a small size."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, 2)
        self.decoder = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the words' scores [T, 1, words] and the state."""
        outputs, (h, c) = self.rnn(self.encoder(tokens), (h, c))
        return self.decoder(outputs), h, c


class Encoder(nn.Module):
    """Six layers of a text encoder of MiniLM's shape, without embeddings."""

    def __init__(self, width: int = 384, inner: int = 1536, heads: int = 12) -> None:
        super().__init__()
        self.heads, sizes = heads, [(width, width)] * 4 + [(width, inner), (inner, width)]
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(*size) for size in sizes) for _ in range(6))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(12))

    def forward(self, values: Tensor) -> Tensor:
        """Map [1, T, width] to the same shape."""
        for number, layer in enumerate(self.layers):
            query, key, value, out, up, down = layer  # type: ignore[misc]
            parts = (
                part(values).view(*values.shape[:2], self.heads, -1).transpose(1, 2) for part in (query, key, value)
            )
            attended = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(values.shape)
            values = self.norms[2 * number](values + out(attended))
            values = self.norms[2 * number + 1](values + down(nn.functional.gelu(up(values))))
        return values


def lowered(programs: ExportedProgram | dict[str, ExportedProgram]) -> bytes:
    """Lower to XNNPACK."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    content: bytes = to_edge_transform_and_lower(programs, partitioner=[XnnpackPartitioner()]).to_executorch().buffer
    return content


def dynamic(model: nn.Module, inputs: tuple[Tensor, ...], *, unrolled: bool = False) -> bytes:
    """Quantize the products to int8 per row, in an unrolled LSTM too."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    program = torch.export.export(model, inputs)
    if unrolled:
        table = torch.export.default_decompositions().items()
        program = program.run_decompositions({op: how for op, how in table if "lstm" in str(op)})
    quantizer = xnnpack.XNNPACKQuantizer()
    quantizer.set_global(xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True))
    prepared = prepare_pt2e(program.module(), quantizer)
    prepared(*inputs)
    return lowered(torch.export.export(convert_pt2e(prepared), inputs))


def four_bits(model: nn.Module, inputs: tuple[Tensor, ...]) -> bytes:
    """Quantize the Linear layers as `linear_bits = 4` does."""
    import copy

    from tasks.runtimes.executorch.quantizer import with_four_bits

    return lowered(torch.export.export(with_four_bits(copy.deepcopy(model), frozenset()), inputs))


def opened(content: bytes, name: str = "forward") -> Call:
    """Load a method of a program, which keeps its bytes."""
    from executorch.extension.pybindings import _C

    if _C._threadpool_get_thread_count() != 1:
        _C._unsafe_reset_threadpool(1)
    kept = _C._load_program_from_buffer(content), content
    method = kept[0].load_method(name)
    return lambda *inputs, kept=kept: tuple(method(list(inputs)))


def print_times(title: str, calls: Mapping[str, tuple[Call, int]], inputs: tuple[Tensor, ...]) -> None:
    """Time calls in turn; print microseconds, the speed-up over the first, bytes, and the distance from the first."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for each in range(ROUNDS + 1):  # the first round warms up
        for name in random.sample(list(calls), len(calls)):
            count, began = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - began) < BLOCK_S:
                calls[name][0](*inputs)
                count += 1
            seconds[name] += [elapsed / count] if each else []
    first, *_ = calls
    exact = first_of(calls[first][0](*inputs))
    for name, (call, size) in calls.items():
        middle, off = statistics.median(seconds[name]), first_of(call(*inputs)) - exact
        faster = statistics.median(slow / fast for slow, fast in zip(seconds[first], seconds[name], strict=True))
        cells = f"{middle * 1e6:.0f} | {faster:.2f} | {size / 1e6:.2f} | {float(off.norm() / exact.norm()):.2%}"
        print(f"| {title} | {name} | {cells} |", flush=True)


def first_of(outputs: Any) -> Tensor:
    """The first output."""
    tensor: Tensor = outputs if isinstance(outputs, Tensor) else outputs[0]
    return tensor


def forms() -> None:
    """Print the table of forms."""
    print("| model | form | µs | faster than eager | MB | off |\n|---|---|---:|---:|---:|---:|")
    torch.manual_seed(0)
    words = Words().eval()
    of_length = {n: (torch.randint(0, WORDS, (n, 1)), *torch.zeros(2, 2, 1, WIDTH)) for n in LENGTHS}
    exported = {f"forward_{n}": torch.export.export(words, inputs) for n, inputs in of_length.items()}
    shared = lowered(exported)
    for n, inputs in of_length.items():
        own, int8 = lowered(exported[f"forward_{n}"]), dynamic(words, inputs, unrolled=True)
        calls: dict[str, tuple[Call, int]] = {
            "eager": (words, 0),
            "float": (opened(own), len(own)),
            "float, one file for 1, 8 and 25 tokens": (opened(shared, f"forward_{n}"), len(shared)),
            "int8 per row, including the LSTM layers": (opened(int8), len(int8)),
        }
        print_times(f"LSTM, {n} tokens", calls, inputs)
    for title, model, inputs in (
        ("encoder, 8 tokens", Encoder(), (torch.randn(1, 8, 384),)),
        ("encoder, 32 tokens", Encoder(), (torch.randn(1, 32, 384),)),
        ("Linear(512, 33278), 1 row", nn.Sequential(nn.Linear(512, 33278)), (torch.randn(1, 512),)),
    ):
        made = {"float": lowered(torch.export.export(model.eval(), inputs)), "int8 per row": dynamic(model, inputs)}
        made["4 bits in groups of 32"] = four_bits(model, inputs)
        print_times(title, {"eager": (model, 0), **{n: (opened(f), len(f)) for n, f in made.items()}}, inputs)


def networks() -> None:
    """Print the table of networks."""
    from tasks.runtimes.executorch import make
    from tasks.runtimes.executorch.open import MODEL, open_program

    quantized: Callable[..., Any] = make._quantized
    kept: list[nn.Module] = []

    def noted(*arguments: Any) -> Any:
        trained = quantized(*arguments)
        kept.append(trained.model)
        return trained

    make._quantized = noted
    print("| network | program, torchao | program, float | torchao, float | OpenVINO, float | program, OpenVINO |")
    print(f"|---|{'---:|' * 5}")
    recipe = {"method": "static", "calibration_batches": 2, "calibration_batch_size": 8}
    for name in NETWORKS:
        torch.manual_seed(0)
        model, images = getattr(torchvision.models, name)(weights=None), torch.rand(16, 3, 96, 96)
        for _ in range(3):  # so that batch norms have the statistics of the images
            model(images)
        model.eval()
        outputs = {"float": model(images[:4])}
        with TemporaryDirectory() as folder:
            for runtime in ("executorch", "openvino"):
                target = Path(folder, runtime)
                quantize(model, recipe, (images[:4],), runtime=runtime, target=target, calibration=[(images,)])
            # The folder lacks the notes of a stored candidate, which the opener of programs would read.
            program = open_program(Path(folder, "executorch", MODEL), 1)
            compiled = runtime_named("openvino").opener().open(CandidateFiles(Path(folder, "openvino"), {}), 1).call
            outputs["executorch"], outputs["openvino"] = first_of(program(images[:4])), first_of(compiled(images[:4]))
        outputs["torchao"] = first_of(kept[-1](images[:4]))
        pairs = ("executorch torchao", "executorch float", "torchao float", "openvino float", "executorch openvino")
        cells = (f"{distance(*(outputs[part] for part in pair.split())):.2%}" for pair in pairs)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("night", "forms", "networks"))
    parser.add_argument("store", type=Path, nargs="?", help="keep the night in this store")
    parser.add_argument("--profile", default="quick", help="run the night with this profile")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.table == "night":
        night(arguments.store, arguments.profile)
        return
    with torch.no_grad(), intra_op_threads(1):
        forms() if arguments.table == "forms" else networks()


if __name__ == "__main__":
    main()
