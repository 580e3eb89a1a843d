"""Tables of docs/measured-runtimes.md: PyTorch's word language model tutorial beside nightquant, on the same inputs.

Run it where nothing else runs; it takes some minutes. The corpus is a folder or archive in WikiText's layout, the
checkpoint a state dict of the tutorial's model trained on it::

    python benchmarks/word_lm.py --data PATH --checkpoint FILE

The tutorial's column is its own procedure in plain torch: quantize, save, evaluate word by word on one thread. The
other is what the nightly flow does with the same inputs, for every recipe.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from tasks.build import model_source, open_candidate
from tasks.data.samples import load_samples
from tasks.extensions import DOMAINS
from tasks.job import Job, Workspace
from tasks.machine import available_cores
from tasks.outputs import intra_op_threads
from tasks.quantize.engine import quantized_engine
from tasks.quantize.source import ModelSource
from tasks.refs import CandidateRef
from tasks.stages import build, evaluate, obtain, prepare
from tasks.workload import Workload

EXAMPLE = Path(__file__).parent.parent / "docs" / "examples" / "wikitext.toml"
MARKS = ("<!-- printed by benchmarks/word_lm.py -->", "<!-- end of what it printed -->")
ROUNDS, CALLS = 15, 20
RUNTIMES = ("eager", "torchscript")
MODES: tuple[Literal["exact", "segments"], ...] = ("exact", "segments")


@dataclass(frozen=True)
class Line:
    """A line of the quality table: seconds of the evaluation alone, and with quantizing and saving."""

    name: str
    megabytes: float
    loss: float
    batched_loss: float
    seconds: float
    whole_s: float


def main() -> None:
    """Measure, print, and write into the page where one is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="wikitext-2", help="corpus: folder or archive (default: %(default)s)")
    parser.add_argument("--checkpoint", default="word_lm.pth", help="state dict (default: %(default)s)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put what is printed between the page's marks, too")
    arguments = parser.parse_args()
    printed = io.StringIO()
    with redirect_stdout(Tee(printed)):
        measure(arguments.data, arguments.checkpoint)
    if arguments.write:
        write_page(arguments.write, printed.getvalue())


class Tee(io.TextIOBase):
    """Writes to standard output and keeps a copy."""

    def __init__(self, copy: io.StringIO) -> None:
        self._copy = copy

    def write(self, text: str) -> int:
        """Write at once, so that a long run shows how far it is."""
        sys.__stdout__.write(text)  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
        return self._copy.write(text)


def write_page(page: Path, printed: str) -> None:
    """Replace what stands between the page's two marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    page.write_text(f"{before}{MARKS[0]}\n\n{printed.strip()}\n\n{MARKS[1]}{after}", encoding="utf-8")


def measure(data: str, checkpoint: str) -> None:
    """Print every table for a corpus and a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(ArtifactStore(Path(folder)))
        job = open_job(data, checkpoint, workspace)
        ids = load_samples(job.dataset, "test", workspace.store)["tokens"]
        print(
            f"The vocabulary has {job.dataset.vocabulary:,} words, and the test split has {len(ids):,} words. The "
            f"benchmark used torch {torch.__version__} on {available_cores()} cores with "
            f"{torch.backends.cpu.get_cpu_capability()}.\n"
        )
        began = time.perf_counter()
        tutorial = tutorial_lines(model_source(job, workspace), ids.long())
        tutorial_s = time.perf_counter() - began
        candidates, ours, ours_s = nightly_lines(job, workspace)
        print_quality(tutorial, ours)
        same_table_s = sum(line.whole_s for line in ours if line.name in ("float", "dynamic-int8"))
        print(
            f"For float and int8, the tutorial's procedure takes {tutorial_s:.1f} s on one thread, and nightquant "
            f"takes {same_table_s:.1f} s on all cores ({tutorial_s / same_table_s:.1f} times as fast). "
            f"Quantizing the model with all {len(ours)} recipes, and saving and evaluating the results, takes "
            f"{ours_s:.1f} s.\n"
        )
        print_modes(job, candidates, workspace)
        print_latency(job, candidates, workspace)


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
            taken = time.perf_counter() - began
            lines.append(Line(name, size, loss, loss, taken, taken))
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


def nightly_lines(job: Job[Workload], workspace: Workspace) -> tuple[list[CandidateRef], list[Line], float]:
    """Every recipe as the nightly flow does it; the seconds of a line are its evaluation's on all cores."""
    candidates, lines = [], []
    whole = time.perf_counter()
    for recipe in job.workload.recipe:
        started = time.perf_counter()
        candidates.append(build(workspace, job, recipe, "eager"))
        began = time.perf_counter()
        result = evaluate(workspace, job, candidates[-1])
        done = time.perf_counter()
        size = candidates[-1].size_bytes / 1e6
        lines.append(Line(recipe.name, size, result.quality, result.quality_batched, done - began, done - started))
    return candidates, lines, time.perf_counter() - whole


def print_quality(tutorial: list[Line], ours: list[Line]) -> None:
    """Both procedures' tables."""
    print("| the tutorial's procedure on one thread | MB | loss | evaluation s |\n|---|---:|---:|---:|")
    for line in tutorial:
        print(f"| {line.name} | {line.megabytes:.3f} | {line.loss:.6f} | {line.seconds:.1f} |")
    print("\n| nightquant, segments | MB | loss | in batches | evaluation s (both) |\n|---|---:|---:|---:|---:|")
    for line in ours:
        print(
            f"| {line.name} | {line.megabytes:.3f} | {line.loss:.6f} | {line.batched_loss:.6f} | {line.seconds:.1f} |"
        )
    print()


def print_modes(job: Job[Workload], candidates: list[CandidateRef], workspace: Workspace) -> None:
    """Both modes of evaluation on all cores, in batches: the exact one, chunk after chunk, and the segments."""
    print("| evaluation on all cores | exact s | segments s | speed-up | loss difference |")
    print("|---|---:|---:|---:|---:|")
    for candidate in candidates:
        if candidate.recipe not in ("float", "dynamic-int8"):
            continue
        taken, losses = [], []
        model = open_candidate(candidate, workspace, torch.get_num_threads())
        for mode in MODES:
            settings = job.workload.evaluate.model_copy(update={"mode": mode})
            workload = job.workload.model_copy(update={"evaluate": settings})
            changed = replace(job, workload=workload)
            began = time.perf_counter()
            with model.scope():
                losses.append(DOMAINS[workload.domain].evaluate(changed, model.call, workspace).value)
            taken.append(time.perf_counter() - began)
        exact_s, segments_s = taken
        gap = abs(losses[0] - losses[1])
        print(f"| {candidate.recipe} | {exact_s:.1f} | {segments_s:.1f} | {exact_s / segments_s:.1f} | {gap:.1e} |")
    print()


def print_latency(job: Job[Workload], candidates: list[CandidateRef], workspace: Workspace) -> None:
    """Milliseconds of one word at batch size 1 on one thread, in interleaved rounds, as ratios to eager float."""
    example = model_source(job, workspace).example_inputs
    step = (example["tokens"][:1], example["h"], example["c"])
    models = {
        (recipe.name, runtime): open_candidate(build(workspace, job, recipe, runtime), workspace, 1)
        for recipe in job.workload.recipe
        for runtime in recipe.runtimes
        if runtime in RUNTIMES
    }
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in models}
    with intra_op_threads(1), torch.inference_mode():
        for turn in range(ROUNDS + 2):
            for key, model in models.items():
                with model.scope():
                    taken = time_calls(lambda model=model: model.call(*step), CALLS)  # type: ignore[misc]
                # The first two rounds warm up, traced models compile in them.
                if turn >= 2:
                    seconds[key].append(taken)
    base = seconds["float", "eager"]
    print("| one word per call on one thread | eager ms | torchscript ms | eager × | torchscript × |")
    print("|---|---:|---:|---:|---:|")
    for candidate in candidates:
        cells = [_cells(seconds.get((candidate.recipe, runtime)), base) for runtime in RUNTIMES]
        print(
            f"| {candidate.recipe} | {' | '.join(ms for ms, _ in cells)} | {' | '.join(ratio for _, ratio in cells)} |"
        )


def _cells(taken_s: list[float] | None, base_s: list[float]) -> tuple[str, str]:
    if taken_s is None:
        return "–", "–"
    ratio = statistics.median(base / taken for base, taken in zip(base_s, taken_s, strict=True))
    return f"{1e3 * statistics.median(taken_s):.2f}", f"{ratio:.2f}"


def time_calls(call: Callable[[], object], calls: int) -> float:
    """Seconds of one call, over a block of `calls`."""
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls


if __name__ == "__main__":
    main()
