"""Tables of docs/measured-runtimes.md: PyTorch's word language model tutorial beside nightquant, on the same inputs.

Run it where nothing else runs; it takes some minutes. The corpus is a folder or archive in WikiText's layout, the
checkpoint a state dict of the tutorial's model trained on it::

    python -m benchmarks.word_lm --data PATH --checkpoint FILE

The tutorial's column is its own procedure in plain torch: quantize, save, evaluate word by word on one thread. The
other is what the nightly flow does with the same inputs, for every recipe.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from tasks.data.outputs import intra_op_threads
from tasks.data.samples import load_samples
from tasks.environment.machine import available_cores
from tasks.quantize.engine import quantized_engine
from tasks.quantize.source import ModelSource
from tasks.run.stages import build, evaluate, obtain, prepare
from tasks.runtimes.build import model_source
from tasks.values.job import Job, Workspace
from tasks.workload import Workload

EXAMPLE = Path(__file__).parent.parent / "docs" / "examples" / "wikitext.toml"


@dataclass(frozen=True)
class Line:
    """A line of the quality table, with the seconds of the evaluation."""

    name: str
    megabytes: float
    loss: float
    seconds: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="wikitext-2", help="corpus: folder or archive (default: %(default)s)")
    parser.add_argument("--checkpoint", default="word_lm.pth", help="state dict (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(ArtifactStore(Path(folder)))
        job = open_job(arguments.data, arguments.checkpoint, workspace)
        ids = load_samples(job.dataset, "test", workspace.store)["tokens"]
        print(
            f"The vocabulary has {job.dataset.vocabulary:,} words, and the test split has {len(ids):,} words. The "
            f"benchmark used torch {torch.__version__} on {available_cores()} cores with "
            f"{torch.backends.cpu.get_cpu_capability()}.\n"
        )
        print_quality(
            "the tutorial's procedure on one thread", tutorial_lines(model_source(job, workspace), ids.long())
        )
        print_quality("nightquant, segments", nightly_lines(job, workspace))


def open_job(data: str, checkpoint: str, workspace: Workspace) -> Job[Workload]:
    """Prepare the corpus and check the checkpoint, as the nightly flow does, for the workload of docs/examples."""
    document: dict[str, Any] = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    document["data"]["uri"] = str(Path(data).resolve())
    document["checkpoint"] = {"kind": "uri", "uri": str(Path(checkpoint).resolve())}
    workload = Workload.model_validate(document)
    return obtain(workspace, workload, prepare(workspace, workload))


def tutorial_lines(source: ModelSource, ids: Tensor) -> list[Line]:
    """The tutorial's own procedure: `quantize_dynamic` on LSTM and Linear, one thread, 25 words a call."""
    model = source.float_model()
    with intra_op_threads(1), warnings.catch_warnings(), tempfile.NamedTemporaryFile() as file:
        warnings.simplefilter("ignore", DeprecationWarning)
        with quantized_engine("x86"):
            small = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
                model, {nn.LSTM, nn.Linear}, dtype=torch.qint8
            )
        lines = []
        for name, one in (("float", model), ("int8", small)):
            torch.save(one.state_dict(), file.name)
            size = Path(file.name).stat().st_size / 1e6
            began = time.perf_counter()
            loss = tutorial_loss(one, ids, source.example_inputs)
            lines.append(Line(name, size, loss, time.perf_counter() - began))
    return lines


def tutorial_loss(model: nn.Module, ids: Tensor, example: dict[str, Tensor]) -> float:
    """Mean loss with batch size 1 and bptt 25, the hidden state carried over."""
    words = ids.view(-1, 1)
    h, c = torch.zeros_like(example["h"]), torch.zeros_like(example["c"])
    criterion = nn.CrossEntropyLoss()
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(words) - 1, 25):
            length = min(25, len(words) - 1 - start)
            logits, h, c = model(words[start : start + length], h, c)
            target = words[start + 1 : start + 1 + length].reshape(-1)
            total += length * criterion(logits.view(-1, logits.shape[-1]), target).item()
    return total / (len(words) - 1)


def nightly_lines(job: Job[Workload], workspace: Workspace) -> list[Line]:
    """Every recipe as the nightly flow does it."""
    lines = []
    for recipe in job.workload.recipe:
        candidate = build(workspace, job, recipe, "eager")
        began = time.perf_counter()
        result = evaluate(workspace, job, candidate)
        seconds = time.perf_counter() - began
        lines.append(Line(recipe.name, candidate.size_bytes / 1e6, result.quality, seconds))
    return lines


def print_quality(procedure: str, lines: list[Line]) -> None:
    """Print a procedure's table."""
    print(f"| {procedure} | MB | loss | evaluation s |\n|---|---:|---:|---:|")
    for line in lines:
        print(f"| {line.name} | {line.megabytes:.3f} | {line.loss:.6f} | {line.seconds:.1f} |")
    print()


if __name__ == "__main__":
    main()
