"""The quality of every candidate beside the same quality by hand, in one thread and in two.

    python -m benchmarks.by_hand [--store STORE] [NAME …]

By hand: torch, onnxruntime or openvino opens the candidate's own files, and gets one row of the raw test data a call.
Eager candidates have no files: the float module is called, and int8 ones are left out. NAME is a built-in workload, or
one of three models of this program: ``pictures`` (a network over pictures of three sizes), ``gestures`` (a GRU with
lengths) or ``power`` (a table). Without names, all are compared. Two numbers are equal if their first five digits are.
Exits with 1 if any differ.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from tasks.data.weights import load_checkpoint
from tasks.domains import domain_named
from tasks.run.stages import build, evaluate, obtain, prepare
from tasks.runtimes.base import runtime_named
from tasks.values.job import Workspace
from tasks.workload import Workload, read_workload

ROOT = Path(__file__).parents[1]
BUILT_IN = ("lstm-demo", "python-text", "resnet18", "word-lm")
FLOAT = {
    "name": "float",
    "method": "none",
    "runtimes": ["eager", "torchscript", "onnxruntime", "openvino"],
}
DYNAMIC = {"name": "dynamic-int8", "method": "dynamic", "modules": ["GRU", "Linear"]}
STATIC = {"name": "static-int8", "method": "static"}
OWN = {"pictures": (STATIC,), "gestures": (DYNAMIC,), "power": (DYNAMIC, STATIC)}
PICTURES = """
import torch
from torch import nn
def build():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, padding=1), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
def row(index):
    side, label = (16, 24, 32)[index % 5 % 3], index % 3
    picture = 0.6 * torch.rand(1, side, side, generator=torch.Generator().manual_seed(index))
    picture[:, :: 2 + label, :: label + 1] += 0.15
    return picture, label
def read():
    splits = {"train": range(600), "calibration": range(600, 660), "test": range(700, 1200)}
    return {name: [row(index) for index in indices] for name, indices in splits.items()}
def pad(items):
    side = max(picture.shape[1] for picture, _ in items)
    padded = [nn.functional.pad(each, (0, side - each.shape[2], 0, side - each.shape[1])) for each, _ in items]
    return torch.stack(padded), torch.tensor([label for _, label in items])
def train(model, splits, seed, epochs):
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for start in range(0, 600 * epochs, 15):
        inputs, target = pad([splits["train"][index % 600] for index in range(start, start + 75, 5)])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), target).backward()
        optimizer.step()
"""
Call = Callable[..., tuple[Tensor, ...]]


def own_model(name: str, folder: Path) -> Workload:
    """Write a model and its data into the folder; return its workload."""
    example = "gestures" if name == "pictures" else name
    document = tomllib.loads((ROOT / f"docs/examples/{example}.toml").read_text(encoding="utf-8"))
    if name == "pictures":
        (folder / "pictures.py").write_text(PICTURES, encoding="utf-8")
        axes = {"input": ["batch", "", "height", "width"]}
        document["data"] = {"kind": "factory", "factory": "pictures:read", "collate": "pictures:pad", "axes": axes}
        document["model"] = {"kind": "factory", "factory": "pictures:build"}
        document["checkpoint"] |= {"train": "pictures:train"}
        document |= {"name": name, "evaluate": {"metric": "accuracy"}, "benchmark": {"baseline": "float/torchscript"}}
    else:
        shutil.copy(ROOT / f"docs/examples/{name}.py", folder)
        subprocess.run([sys.executable, f"{name}.py"], cwd=folder, check=True)
    if name == "power":
        header, *lines = (folder / "power.csv").read_text(encoding="utf-8").splitlines()
        lines = [f"{line},{'train' if number % 4 else 'test'}" for number, line in enumerate(lines)]
        (folder / "power.csv").write_text("\n".join([f"{header},split", *lines]), encoding="utf-8")
        document["data"] |= {"split": "split", "uri": str(folder / "power.csv")}
    document["recipe"] = [FLOAT, *({**recipe, "runtimes": FLOAT["runtimes"][1:]} for recipe in OWN[name])]
    return Workload.model_validate(document, context={"folder": str(folder)})


def script(folder: Path, threads: int) -> Call:
    """Open a TorchScript file."""
    model = torch.jit.load(folder / "model.ts")
    return lambda *inputs: listed(model(*inputs))


def package(folder: Path, threads: int) -> Call:
    """Open a compiled package and its operators."""
    loaded = {Path(library).name for library in torch.ops.loaded_libraries}
    for library in folder.glob("*.so"):
        if library.name not in loaded:  # torch aborts the process if another copy registers the same operators
            torch.ops.load_library(str(library))
    model = torch._inductor.aoti_load_package(str(folder / "model.pt2"))
    return lambda *inputs: listed(model(*inputs))


def onnx(folder: Path, threads: int) -> Call:
    """Open an ONNX file."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    path, disabled = folder / "model.onnx", ["WeightBiasQuantization"]
    session = runtime.InferenceSession(path, options, ["CPUExecutionProvider"], disabled_optimizers=disabled)
    names = [entry.name for entry in session.get_inputs()]
    return lambda *inputs: listed(session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)}))


def ir(folder: Path, threads: int) -> Call:
    """Open and compile an IR."""
    core = import_module("openvino").Core()
    model = core.read_model(folder / "model.xml")
    precision = model.get_rt_info(["nightquant", "precision"]).astype(str)
    hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
    compiled = core.compile_model(model, "CPU", hints)
    return lambda *inputs: listed([each.copy() for each in compiled([x.numpy() for x in inputs]).to_tuple()])


OPENERS = {"torchscript": script, "aot-inductor": package, "onnxruntime": onnx, "openvino": ir}


def listed(outputs: Any) -> tuple[Tensor, ...]:
    """Return outputs as a tuple of tensors."""
    return tuple(map(torch.as_tensor, outputs if isinstance(outputs, tuple | list) else [outputs]))


def quality(call: Call, plain: nn.Module, workload: Workload, data: Path, folder: Path) -> float:
    """Compute the workload's quality with one row a call; `data` has the prepared columns of a built-in workload."""
    column = {path.stem.partition(".")[2]: np.load(path) for path in data.glob("test.*.npy")}
    if workload.name == "word-lm":
        return loss_of_words(call, torch.from_numpy(column["tokens"]).long(), workload)
    if workload.name == "lstm-demo":
        inputs = [torch.from_numpy(column[name]) for name in ("inputs", "h", "c")]
        expected, actual = plain(*inputs)[0].double(), call(*inputs)[0].double()
        return 100 * ((expected - actual).abs().mean() / expected.abs().mean()).item()
    if workload.name == "python-text":
        texts = np.split(column["input_ids"], np.cumsum(column["input_ids.shapes"][:, 0])[:-1])
        ids = [torch.from_numpy(text).long()[None] for text in texts]
        rows = zip(((each, torch.ones_like(each)) for each in ids), column["row-target"], strict=True)
    elif workload.name == "resnet18":
        stored = json.loads((data / "samples.json").read_text(encoding="utf-8"))
        mean, std = (torch.tensor(stored[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
        images = (((torch.from_numpy(image[None]).float() / 255 - mean) / std,) for image in column["images"])
        rows = zip(images, column["row-target"], strict=True)
    elif workload.name == "power":
        table = np.genfromtxt(folder / "power.csv", delimiter=",", skip_header=1, usecols=range(5))
        is_test = np.arange(len(table)) % 4 == 0
        mean, std = table[~is_test, :4].mean(0), table[~is_test, :4].std(0)
        scaled, target = ((table[is_test, :4] - mean) / std).astype(np.float32), table[is_test, 4].astype(np.float32)
        answers = torch.stack([call(torch.from_numpy(row[None]))[0].flatten()[0] for row in scaled])
        return (answers.double() - torch.from_numpy(target).double()).square().mean().item()
    else:
        module = import_module(workload.name)
        batches = (module.pad([item]) for item in module.read()["test"])
        rows = ((tuple(x.values()) if isinstance(x, dict) else (x,), int(target)) for x, target in batches)
    pairs = [(int(call(*inputs)[0].argmax()), int(label)) for inputs, label in rows]
    if workload.name != "gestures":
        return 100 * sum(guess == label for guess, label in pairs) / len(pairs)
    by_class = [[(guess == k) + (label == k) for guess, label in pairs if k in (guess, label)] for k in range(3)]
    return sum(2 * sums.count(2) / sum(sums) for sums in by_class) / 3


def loss_of_words(call: Call, ids: Tensor, workload: Workload) -> float:
    """Read each segment from a zero state, after its warm-up words, in calls of the benchmark's length."""
    settings, spec, words = workload.evaluate, workload.model, workload.benchmark.sequence_length
    count = max(1, min(settings.segments, (len(ids) - 1) // max(1, settings.warm_up)))
    length, losses = -(-(len(ids) - 1) // count), []
    for start in range(0, len(ids) - 1, length):
        h = c = torch.zeros(spec.layers, 1, spec.hidden_size)
        warm, stop = max(0, start - settings.warm_up), min(start + length, len(ids) - 1)
        for first in (*range(warm, start, words), *range(start, stop, words)):
            last = min(first + words, start if first < start else stop)
            logits, h, c = call(ids[first:last, None], h, c)
            if first >= start:
                losses.append(nn.functional.cross_entropy(logits[:, 0], ids[first + 1 : last + 1], reduction="none"))
    return torch.cat(losses).double().mean().item()


def compared(workload: Workload, store: ArtifactStore, folder: Path) -> Iterator[bool]:
    """Print each candidate's two qualities; yield whether they are equal."""
    workspace = Workspace(store)
    job = obtain(workspace, workload, prepare(workspace, workload))
    plain = domain_named(workload.domain).build(workload.model, job.dataset).eval()
    load_checkpoint(plain, job.checkpoint, store)

    data, engine = store.path(job.dataset.kind, job.dataset.digest), torch.backends.quantized.engine
    for pair in workload.candidates():
        recipe, runtime = workload.recipe_named(pair.recipe), pair.runtime
        if runtime not in OPENERS and recipe.method != "none":
            continue
        candidate = build(workspace, job, recipe, runtime)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            product = evaluate(workspace, job, candidate).quality
            torch.backends.quantized.engine = runtime_named(runtime).engine(recipe) or engine
            files, opener = store.path(candidate.kind, candidate.digest), OPENERS.get(runtime)
            call = opener(files, threads) if opener else lambda *inputs: listed(plain(*inputs))
            with torch.inference_mode():
                hand = quality(call, plain, workload, data, folder)
            torch.backends.quantized.engine = engine
            is_equal = math.isclose(product, hand, rel_tol=1e-5, abs_tol=1e-9)
            name = f"{workload.name:12} {pair}"
            print(f"{name:45} {threads:8} {product:12.7g} {hand:12.7g}  {'yes' if is_equal else 'NO'}", flush=True)
            yield is_equal


def main() -> int:
    """Compare the named workloads."""
    warnings.simplefilter("ignore", FutureWarning)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*BUILT_IN, *OWN, []], metavar="NAME")
    parser.add_argument("--store", type=Path, help="keep data, weights and candidates in this folder")
    options = parser.parse_args()
    print(f"{'workload     candidate':45} {'threads':>8} {'product':>12} {'by hand':>12}  equal")
    outcomes: list[bool] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sys.path.insert(0, temporary)
        store = ArtifactStore((options.store or folder / "store").resolve())
        for name in options.names or (*BUILT_IN, *OWN):
            is_own = name in OWN
            workload = own_model(name, folder) if is_own else read_workload(ROOT / f"flows/workloads/{name}.toml")
            outcomes += compared(workload, store, folder)
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
