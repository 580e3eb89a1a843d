"""Tables of docs/measured-models.md: int8 ResNet-18 against float baselines worth beating, and the built-in workload.

Run it where nothing else runs::

    python benchmarks/vision.py speed          # torchvision's ResNet-18, 224x224, batch 1, one thread
    python benchmarks/vision.py accuracy       # docs/examples/resnet18-qat.toml: train, quantize, evaluate

Speed depends on the processor's int8 instructions, so the script prints which ones it has. Every model is called once
a round, in a new order each round, and is compared with eager float of the same round.
"""

from __future__ import annotations

import argparse
import io
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import bootstrap
from torch import Tensor, nn
from torchvision.models import quantization

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks.evaluate import compare
from tasks.job import Workspace
from tasks.outputs import intra_op_threads
from tasks.quantize.engine import instruction_set, quantized_engine, without_deprecations
from tasks.quantize.graph import convert
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.methods import StaticRecipe
from tasks.quantize.spec import spec_of
from tasks.runtimes.torchscript_files import read_script, write_script
from tasks.stages import build, evaluate, obtain, prepare
from tasks.workload import read_workload

EXAMPLE = Path(__file__).parent.parent / "docs" / "examples" / "resnet18-qat.toml"
ENGINES = ("x86", "fbgemm", "onednn", "qnnpack")


@dataclass(frozen=True)
class Candidate:
    """A model, what it is called with, and the bytes of its serialized state."""

    name: str
    model: nn.Module
    images: Tensor
    size_bytes: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["speed", "accuracy"])
    parser.add_argument("--rounds", type=int, default=30, help="rounds of the speed table (default: %(default)s)")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--store", type=Path, default=None, help="store of the accuracy table (default: a new one)")
    arguments = parser.parse_args()
    print(f"{processor()}; torch sees {instruction_set()}; torch {torch.__version__}\n")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.table == "speed":
            print_speed(Path(folder), arguments.engines, arguments.rounds)
        else:
            print_accuracy(ArtifactStore(arguments.store or Path(folder)))


def processor() -> str:
    """The processor's model and the instructions that int8 kernels look for."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    fields = [line.partition(":") for line in info.splitlines()]
    model = next((value for key, _, value in fields if key.strip() == "model name"), "unknown").strip()
    flags = next((value for key, _, value in fields if key.strip() == "flags"), "").split()
    names = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")
    return f"{model}: " + ", ".join(f"{name} {'yes' if name in flags else 'no'}" for name in names)


def print_speed(folder: Path, engines: list[str], rounds: int) -> None:
    """Interleaved latencies of ResNet-18 with random weights."""
    torch.manual_seed(0)
    images = torch.randn(1, 3, 224, 224)
    with intra_op_threads(1), without_deprecations(), torch.inference_mode():
        candidates = [*float_candidates(folder, images)]
        for engine in engines:
            try:
                candidates.extend(int8_candidates(folder, images, engine))
            except QuantizationError as error:
                print(f"{engine}: {error}\n")
        seconds = interleaved(candidates, rounds)
    baseline = np.array(seconds["float/eager"])
    print("| candidate | median ms | speed-up over float/eager (95%) | size MB | times smaller |")
    print("|---|---|---|---|---|")
    for one in candidates:
        ratio, low, high = median_ratio(baseline, np.array(seconds[one.name]))
        median = float(np.median(seconds[one.name])) * 1e3
        print(f"| {one.name} | {median:.1f} | {ratio:.2f} ({low:.2f}-{high:.2f}) "
              f"| {one.size_bytes / 1e6:.1f} | {candidates[0].size_bytes / one.size_bytes:.2f} |")  # fmt: skip


def median_ratio(baseline_s: np.ndarray, candidate_s: np.ndarray) -> tuple[float, float, float]:
    """How many times as fast, float64 [rounds] each: median over the rounds, and its percentile bootstrap interval."""
    logs = np.log(baseline_s / candidate_s)
    if not logs.any():  # the baseline beside itself
        return 1.0, 1.0, 1.0
    interval = bootstrap((logs,), np.median, method="percentile", rng=0).confidence_interval
    return math.exp(np.median(logs)), math.exp(interval.low), math.exp(interval.high)


def float_candidates(folder: Path, images: Tensor) -> Iterator[Candidate]:
    """Eager, channels-last, and traced and frozen."""
    model = resnet18()
    yield Candidate("float/eager", model, images, state_bytes(model))
    last = resnet18().to(memory_format=torch.channels_last)
    yield Candidate("float channels-last/eager", last, images.to(memory_format=torch.channels_last), state_bytes(last))
    yield scripted("float/torchscript", model, images, folder)


def int8_candidates(folder: Path, images: Tensor, engine: str) -> Iterator[Candidate]:
    """Static int8 with the engine's own settings, calibrated on the image itself: speed does not depend on ranges."""
    spec = spec_of(StaticRecipe(name=engine, method="static", engine=engine, activation_observer="min-max"))
    examples = {"images": images}
    with quantized_engine(engine):
        model = resnet18()
        prepared = convert.prepare(model, make_plan(model, spec, examples), spec, examples)
        prepared(images)
        int8 = convert.convert(prepared)
        yield Candidate(f"int8 {engine}/eager", int8, images, state_bytes(int8))
        yield scripted(f"int8 {engine}/torchscript", int8, images, folder)


def resnet18() -> nn.Module:
    """The same random weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = quantization.resnet18(weights=None).eval()
    return model


def scripted(name: str, model: nn.Module, images: Tensor, folder: Path) -> Candidate:
    """The model traced, frozen, saved and loaded."""
    path = folder / f"{name.replace('/', '-').replace(' ', '-')}.ts"
    # As the nightly flow does: float graphs may fold batch norms, int8 ones stay bit for bit what was evaluated.
    write_script(model, {"images": images}, path, exact=name.startswith("int8"))
    return Candidate(name, read_script(path), images, path.stat().st_size)


def state_bytes(model: nn.Module) -> int:
    """Bytes of the saved state dict."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.getbuffer().nbytes


def interleaved(candidates: list[Candidate], rounds: int) -> dict[str, list[float]]:
    """Seconds of one call per round and candidate, after two calls that are not counted."""
    seconds: dict[str, list[float]] = {one.name: [] for one in candidates}
    for number in range(-2, rounds):
        for one in random.Random(number).sample(candidates, len(candidates)):
            taken = timed(lambda one=one: one.model(one.images))  # type: ignore[misc]
            if number >= 0:
                seconds[one.name].append(taken)
    return seconds


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def print_accuracy(store: ArtifactStore) -> None:
    """Top-1 of every candidate of the example workload against its float model on the same images."""
    workload, workspace = read_workload(EXAMPLE), Workspace(store)
    job = obtain(workspace, workload, prepare(workspace, workload))
    print("| candidate | graph | top-1 % | difference from float (95%) | agreement | size MB | seconds to build |")
    print("|---|---|---|---|---|---|---|")
    baseline = None
    for recipe, runtime in ((each, runtime) for each in workload.recipe for runtime in each.runtimes):
        began = time.perf_counter()
        candidate = build(workspace, job, recipe, runtime)
        taken = time.perf_counter() - began
        evaluation = evaluate(workspace, job, candidate)
        baseline = baseline or evaluation
        against = compare(baseline, evaluation, store)
        low, high = against.quality_difference_low or 0.0, against.quality_difference_high or 0.0
        print(f"| {recipe.name}/{runtime} | {candidate.graph or '-'} | {evaluation.quality:.2f} "
              f"| {against.quality_difference:+.2f} ({low:+.2f} to {high:+.2f}) "
              f"| {against.agreement if against.agreement is not None else 1:.4f} "
              f"| {candidate.size_bytes / 1e6:.1f} | {taken:.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
