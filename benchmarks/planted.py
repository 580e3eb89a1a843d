"""Planted faults: how many of them the proof of int8 finds, and how often it doubts a clean candidate.

Run it anywhere; it takes some fifteen minutes, and no figure of it is a time::

    python -m benchmarks.planted --faults 120 --clean 200

Small networks of random shape and weights are quantized by this project. A fault is planted in the candidate or in its
process: layers that run in float although the candidate counts them as quantized; a batch norm that is left beside its
convolution; weights and a processor with which products saturate; rows that share the range of their activations.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from tasks.data.tensor_files import GOLDEN
from tasks.measure.benchmark.child import Limit, run_child
from tasks.measure.benchmark.messages import ChildSpec, Subject
from tasks.measure.proof.golden import golden_cases
from tasks.run.stages import build, obtain, prepare
from tasks.runtimes.base import DOCUMENT, CandidateFiles
from tasks.runtimes.build import open_candidate
from tasks.values.job import Job, Workspace
from tasks.values.proofs import ProofReport, doubt_about_batches
from tasks.values.refs import CandidateRef
from tasks.workload import Workload
from tasks.workload.recipe import CandidateName

FLOAT = {"name": "float", "method": "none"}
STATIC = {"name": "int8", "method": "static", "calibration_batches": 1, "calibration_batch_size": 8}
RUNTIMES = ("eager", "torchscript", "onnxruntime", "openvino")
TOGETHER = 20  # candidates in one process
_ONEDNN_AS_ON_AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2"}


class Network(nn.Module):
    """Convolutions with batch norms and ReLUs, some with a shortcut, and a linear layer; all drawn from a seed."""

    def __init__(self, seed: int, *, saturating: bool = False) -> None:
        super().__init__()
        draw = random.Random(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            width, depth = draw.choice((16, 24, 32, 48)), draw.randint(2, 5)
            self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
            self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(depth))
            self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(depth))
            self.shortcuts = [draw.random() < 0.4 for _ in range(depth)]
            self.fc = nn.Linear(width, 4)
        if saturating:  # all at the end of int8's range, and of one sign
            for conv in self.convs:
                nn.init.normal_(conv.weight, 1.0, 1e-3)

    def forward(self, images: Tensor) -> Tensor:
        """Images, float32 [B, 3, H, W], to logits [B, 4]."""
        seen = torch.relu(self.stem(images))
        for conv, norm, shortcut in zip(self.convs, self.norms, self.shortcuts, strict=True):
            found = norm(conv(seen))
            seen = torch.relu(found + seen) if shortcut else torch.relu(found)
        return self.fc(seen.mean((2, 3)))


def network(seed: int, *, saturating: bool = False) -> nn.Module:
    """What the workloads call."""
    return Network(seed, saturating=saturating).eval()


@dataclass(frozen=True)
class Planted:
    """A candidate to look at, whether as on a processor without VNNI, and what is known about its rows."""

    kind: str
    subject: Subject
    without_vnni: bool = False
    batch_doubt: str = ""


def main() -> None:
    """Plant, look, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=120)
    parser.add_argument("--clean", type=int, default=200)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        garden = Garden(Workspace(ArtifactStore(Path(folder) / "store")), Path(folder))
        kinds = [garden.fallback, garden.unfused, garden.shared_range, garden.saturating]
        faults = [kinds[number % len(kinds)](number) for number in range(arguments.faults)]
        clean = [garden.clean(1000 + number) for number in range(arguments.clean)]
        missed: list[str] = []
        print("| planted | candidates | found |\n|---|---:|---:|")
        for kind in dict.fromkeys(each.kind for each in faults):
            looked = list(look(garden, [each for each in faults if each.kind == kind]))
            print(f"| {kind} | {len(looked)} | {sum(bool(doubts) for _, doubts in looked)} |", flush=True)
            missed += [each.subject.name.recipe for each, doubts in looked if not doubts]
        found = [(each, doubts) for each, doubts in look(garden, clean) if doubts]
        print(f"| nothing | {len(clean)} | {len(found)} |")
        print("\n".join(f"- missed: {name}" for name in missed))
        for each, doubts in found:
            print(f"- {each.subject.name.recipe}: {doubts}")


def look(garden: Garden, planted: list[Planted]) -> Iterator[tuple[Planted, list[str]]]:
    """What is doubted about each, looked at in processes of some candidates at once."""
    for without_vnni in dict.fromkeys(each.without_vnni for each in planted):
        alike = [each for each in planted if each.without_vnni == without_vnni]
        for first in range(0, len(alike), TOGETHER):
            some = alike[first : first + TOGETHER]
            report = garden.prove([each.subject for each in some], without_vnni=without_vnni)
            for each in some:
                if each.subject.key in report.refused:
                    print(f"- {each.kind}: {report.refused[each.subject.key]}")
                    continue
                doubts = list(report.proofs[each.subject.key].doubts)
                yield each, doubts + [each.batch_doubt] * bool(each.batch_doubt)


class Garden:
    """Makes candidates, clean ones and others, in a store."""

    def __init__(self, workspace: Workspace, folder: Path) -> None:
        self.workspace, self.folder = workspace, folder

    def clean(self, seed: int) -> Planted:
        """A static candidate as it should be."""
        return self._planted("nothing", *self._static(seed, RUNTIMES[seed % len(RUNTIMES)]))

    def fallback(self, seed: int) -> Planted:
        """One or two layers stay float, and the candidate says that they are quantized."""
        layers = ["fc", *(f"convs.{index}" for index in range(len(Network(seed).convs)))]
        left = random.Random(seed).sample(layers, 1 + seed % 2)
        job, candidate = self._static(seed, RUNTIMES[seed // 4 % len(RUNTIMES)], exclude=left)
        planted = self._planted("float fallback", job, candidate, claimed=left)
        if candidate.runtime == "onnxruntime":
            # It quantizes float weights between a DequantizeLinear and a QuantizeLinear itself, when it loads them.
            _bypass(Path(planted.subject.folder) / "model.onnx", left)
        return planted

    def unfused(self, seed: int) -> Planted:
        """A batch norm between a convolution and what quantizes its output, which keeps both from the int8 kernel."""
        planted = self._planted("unfused chain", *self._static(seed, "onnxruntime"))
        _separate(Path(planted.subject.folder) / "model.onnx", seed)
        return planted

    def saturating(self, seed: int) -> Planted:
        """Products of extreme weights with 8-bit activations, made for VNNI; oneDNN's switch takes VNNI away."""
        job, candidate = self._static(seed, "eager", saturating=True, engine="onednn")
        return self._planted("saturation", job, candidate, without_vnni=True)

    def shared_range(self, seed: int) -> Planted:
        """Dynamic quantization, whose activations share a range over the rows of a call."""
        runtime = ("eager", "onnxruntime")[seed // 4 % 2]
        recipe = {"name": "int8", "method": "dynamic", "modules": ["Linear"], "runtimes": [runtime]}
        job = self._job(seed, recipe)
        return self._planted("shared range", job, build(self.workspace, job, job.workload.recipe[1], runtime))

    def prove(self, subjects: list[Subject], *, without_vnni: bool) -> ProofReport:
        """Look at them in a process, which may be as on a processor without VNNI."""
        before = dict(os.environ)
        os.environ.update(_ONEDNN_AS_ON_AVX2 if without_vnni else {})
        try:
            spec = ChildSpec(subjects=tuple(subjects), loader="", threads=1)
            return run_child("tasks.measure.proof.child", spec, ProofReport, Limit())
        finally:
            os.environ.clear()
            os.environ.update(before)

    def _static(self, seed: int, runtime: str, **keys: Any) -> tuple[Job[Workload], CandidateRef]:
        saturating = keys.pop("saturating", False)
        job = self._job(seed, STATIC | {"runtimes": [runtime]} | keys, saturating=saturating)
        return job, build(self.workspace, job, job.workload.recipe[1], runtime)

    def _job(self, seed: int, recipe: dict[str, Any], *, saturating: bool = False) -> Job[Workload]:
        arguments = {"seed": seed, "saturating": saturating}
        workload = Workload.model_validate(
            {
                "schema_version": 1, "name": f"network-{seed}", "description": "a network of random shape",
                "domain": "image-classification",
                "data": {
                    "kind": "rendered-characters", "characters": "AHTX", "image_size": 32,
                    "train": 16, "calibration": 16, "valid": 16, "test": 16,
                },
                "model": {"kind": "factory", "factory": "benchmarks.planted:network", "arguments": arguments},
                "checkpoint": {"kind": "seeded", "seed": seed},
                "recipe": [FLOAT, recipe],
            }
        )  # fmt: skip
        return obtain(self.workspace, workload, prepare(self.workspace, workload))

    def _planted(
        self,
        kind: str,
        job: Job[Workload],
        candidate: CandidateRef,
        *,
        claimed: list[str] | None = None,
        without_vnni: bool = False,
    ) -> Planted:
        store = self.workspace.store
        opened = open_candidate(candidate, self.workspace, 1)
        with opened.scope(), torch.inference_mode():
            golden, batching = golden_cases(job, opened.call, self.workspace)
        own = self.folder / f"{job.workload.name}-{kind.replace(' ', '-')}-{candidate.runtime}"
        own.mkdir()
        store.copy(candidate.kind, candidate.digest, own)
        (own / GOLDEN).write_bytes(golden.to_bytes())
        if claimed:
            _claim(own / DOCUMENT, claimed)
        shared = CandidateFiles.find(candidate, store).shared
        subject = Subject(
            name=CandidateName(own.name, candidate.runtime),
            folder=str(own),
            shared={kind: str(path) for kind, path in shared.items()},
            golden=str(own / GOLDEN),
        )
        return Planted(kind, subject, without_vnni, doubt_about_batches(batching.difference if batching else None))


def _bypass(path: Path, modules: list[str]) -> None:
    """Let products of these modules take their inputs as they were before they were quantized."""
    import onnx

    model = onnx.load(path)
    made_by = {output: node for node in model.graph.node for output in node.output}
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm") and node.name.partition("/")[0] in modules:
            dequantized = made_by.get(node.input[0])
            if dequantized is not None and dequantized.op_type == "DequantizeLinear":
                node.input[0] = made_by[dequantized.input[0]].input[0]
    onnx.save(model, path)


def _separate(path: Path, seed: int) -> None:
    """Put a batch norm that changes nothing behind one of the convolutions."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(path)
    products = [node for node in model.graph.node if node.op_type == "Conv"]
    product = products[seed % len(products)]
    channels = next(
        weight.dims[0]
        for node in model.graph.node
        if product.input[1] in node.output
        for weight in model.graph.initializer
        if weight.name == node.input[0]
    )
    values = {"scale": 1.0, "bias": 0.0, "mean": 0.0, "variance": 1.0 - 1e-5}
    for name, value in values.items():
        tensor = np.full(channels, value, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(tensor, f"planted_{name}"))
    behind, product.output[0] = product.output[0], "planted_product"
    inputs = ["planted_product", *(f"planted_{name}" for name in values)]
    norm = helper.make_node("BatchNormalization", inputs, [behind], name="planted", epsilon=1e-5)
    model.graph.node.insert(list(model.graph.node).index(product) + 1, norm)
    onnx.save(model, path)


def _claim(document: Path, claimed: list[str]) -> None:
    """Write into a candidate that modules are quantized which are not."""
    made = json.loads(document.read_text(encoding="utf-8"))
    for module in made["coverage"]:
        if module["module"] in claimed:
            module |= {"quantized": True, "reason": ""}
    document.write_text(json.dumps(made), encoding="utf-8")


if __name__ == "__main__":
    main()
