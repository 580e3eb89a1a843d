"""Tables of docs/measured-runtimes.md: every runtime by its own means beside what nightquant makes, in one run.

Run it where nothing else runs; it takes some ten minutes::

    python -m benchmarks.runtimes --rounds 12

The models are the tutorial's word model (from ../shared/data where that is, else random weights of the same shape),
ResNet-18, and a BERT with the shape of MiniLM-L6 (width 384, 6 layers). One thread, blocks of at least 0.12 s in random
order, caches warm. Ratios are to torch's eager float of the same round, with the 95% interval of their median by order
statistics. Peers are written here as their own documentation has them; the candidates are built by this project.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import peers
from storage.artifacts import ArtifactStore
from storage.errors import NightquantError
from tasks.data.outputs import intra_op_threads
from tasks.domains import domain_named
from tasks.environment.machine import this_machine
from tasks.run.stages import build, obtain, prepare
from tasks.runtimes.build import model_source, open_candidate
from tasks.values.job import Job, Workspace
from tasks.workload import Workload, find_workloads

SHARED = Path(__file__).parents[2] / "shared" / "data"
EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "wikitext.toml"
BLOCK_S, WARM_UP_S = 0.12, 0.5
EAGER = "torch eager float"
WORD_RECIPES: list[dict[str, Any]] = [
    {"name": "float", "method": "none", "runtimes": ["torchscript", "onnxruntime", "openvino"]},
    {"name": "float-without-onednn", "method": "none", "onednn": False},
    {"name": "dynamic-int8", "method": "dynamic", "runtimes": ["torchscript", "onnxruntime", "openvino"]},
    {"name": "bfloat16", "method": "cast", "runtimes": ["torchscript", "openvino"]},
    {"name": "int8-per-row", "method": "dynamic-per-row", "runtimes": ["eager", "aot-inductor"]},
]
IMAGE_RECIPES: list[dict[str, Any]] = [
    {
        "name": "float", "method": "none",
        "runtimes": ["torchscript", "onnxruntime", "openvino", "aot-inductor", "executorch"],
    },
    {"name": "float-channels-last", "method": "none", "memory_format": "channels-last", "runtimes": ["torchscript"]},
    {"name": "bfloat16", "method": "cast", "runtimes": ["openvino", "aot-inductor"]},
    {
        "name": "static-int8", "method": "static", "calibration_batches": 2, "calibration_batch_size": 8,
        "runtimes": ["torchscript", "onnxruntime", "openvino", "aot-inductor", "executorch"],
    },
    {
        "name": "static-int8-onednn", "method": "static", "engine": "onednn", "calibration_batches": 2,
        "calibration_batch_size": 8, "runtimes": ["torchscript"],
    },
]  # fmt: skip
IMAGES: dict[str, Any] = {
    "schema_version": 1,
    "name": "resnet18-224",
    "description": "ResNet-18 with random weights at its usual size",
    "domain": "image-classification",
    "data": {
        "kind": "rendered-characters", "characters": "ABDEFHKMRSTX", "image_size": 224,
        "train": 48, "calibration": 16, "valid": 16, "test": 16,
    },
    "model": {"kind": "torchvision", "name": "resnet18"},
    "checkpoint": {"kind": "seeded", "seed": 0},
    "benchmark": {"baseline": "float/torchscript"},
}  # fmt: skip
ENCODER_LENGTHS = (8, 32, 128)
ENCODER_SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
ENCODER_RECIPES: list[dict[str, Any]] = [
    {"name": "float", "method": "none", "runtimes": ["eager", "onnxruntime", "openvino"]},
    {"name": "dynamic-int8", "method": "dynamic", "runtimes": ["torchscript", "onnxruntime", "openvino"]},
    {"name": "static-int8", "method": "static", "runtimes": ["onnxruntime", "openvino"]},
    {"name": "int8-per-row", "method": "dynamic-per-row", "runtimes": ["eager", "aot-inductor"]},
]


@dataclass(frozen=True)
class Subject:
    """Something to call, and what is entered around its calls."""

    call: Callable[[], object]
    scope: Callable[[], AbstractContextManager[None]] = nullcontext


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="timed blocks of each subject (default: %(default)s)")
    parser.add_argument("--only", choices=("words", "images", "encoders"), help="time only this model")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder with the checkpoint and its text")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    machine = this_machine()
    has = [name for name in ("avx2", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8") if name in machine.isa]
    print(f"{machine.cpu} ({', '.join(has)}); {', '.join(f'{n} {v}' for n, v in machine.libraries.items())}.\n")
    with tempfile.TemporaryDirectory() as folder, intra_op_threads(1), torch.inference_mode():
        workspace = Workspace(ArtifactStore(Path(folder) / "store"))
        if arguments.only in (None, "words"):
            words = word_job(arguments.shared, workspace)
            for title, length in (("word model with one token", 1), ("word model with 25 tokens", 25)):
                print_column(title, subjects_of(words, workspace, length, Path(folder)), arguments.rounds)
        if arguments.only in (None, "images"):
            images = subjects_of(image_job(workspace), workspace, 0, Path(folder))
            print_column("ResNet-18, 224², batch 1", images, arguments.rounds)
        if arguments.only in (None, "encoders"):
            job = encoder_job(workspace)
            for length in ENCODER_LENGTHS:
                ids = torch.randint(5, 1000, (1, length), generator=torch.Generator().manual_seed(length))
                encoders = candidates_of(job, workspace, (ids, torch.ones_like(ids)))
                encoders[EAGER] = encoders.pop("nightquant float/eager")
                print_column(f"MiniLM shape, {length} tokens", encoders, arguments.rounds)


def word_job(shared: Path, workspace: Workspace) -> Job[Workload]:
    """The tutorial's model on its corpus, or of its shape on a corpus of as many words."""
    document: dict[str, Any] = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    document["recipe"] = WORD_RECIPES
    corpus, checkpoint = shared / "wikitext-2-small", shared / "word_lm_wikitext2_small.pth"
    if checkpoint.exists():
        document["checkpoint"] = {"kind": "uri", "uri": str(checkpoint)}
    else:
        document["checkpoint"] = {"kind": "seeded"}
        corpus = peers.write_words(Path(tempfile.mkdtemp()), 18_328)
    document["data"]["uri"] = str(corpus)
    return job_of(document, workspace)


def image_job(workspace: Workspace) -> Job[Workload]:
    """ResNet-18 on drawn pictures of the usual size."""
    return job_of(IMAGES | {"recipe": IMAGE_RECIPES}, workspace)


def encoder_job(workspace: Workspace) -> Job[Workload]:
    """The text encoder of the built-in workload in another shape, with random weights."""
    (built_in,) = find_workloads(["python-text"], Path(__file__).parents[1] / "flows" / "workloads")
    document = built_in.model_dump(mode="json") | {"checkpoint": {"kind": "seeded"}, "recipe": ENCODER_RECIPES}
    document["model"]["config"] |= ENCODER_SHAPE
    document["data"] |= {"train": 200, "valid": 20, "test": 200, "calibration": 20}
    document["benchmark"]["baseline"] = "float/eager"
    return job_of(document, workspace)


def job_of(document: Mapping[str, Any], workspace: Workspace) -> Job[Workload]:
    """Data and checkpoint of a workload."""
    workload = Workload.model_validate(document)
    return obtain(workspace, workload, prepare(workspace, workload))


def subjects_of(job: Job[Workload], workspace: Workspace, length: int, folder: Path) -> dict[str, Subject]:
    """Every peer by its own means, then every candidate of this project."""
    benchmark = job.workload.benchmark.model_copy(update={"sequence_length": length or 1})
    workload = job.workload.model_copy(update={"benchmark": benchmark})
    domain, store = domain_named(workload.domain), workspace.store
    inputs = tuple(domain.example_inputs(workload, job.dataset, store, 1).values())
    source = model_source(job, workspace)
    made = peers.words(source, inputs, folder) if length else peers.images(source, inputs, folder)
    subjects = {
        name: Subject((lambda call=call: call(*inputs)), scope)  # type: ignore[misc]
        for name, (call, scope) in made.items()
    }
    return subjects | candidates_of(job, workspace, inputs)


def candidates_of(job: Job[Workload], workspace: Workspace, inputs: tuple[torch.Tensor, ...]) -> dict[str, Subject]:
    """Every candidate that can be built here; name those that cannot."""
    subjects = {}
    for recipe in job.workload.recipe:
        for runtime in recipe.runtimes:
            try:
                with torch.inference_mode(mode=False):
                    opened = open_candidate(build(workspace, job, recipe, runtime), workspace, 1)
            except NightquantError as error:
                print(f"- {recipe.name}/{runtime} is left out: {error}\n")
                continue
            name = f"nightquant {recipe.name}/{runtime}"
            subjects[name] = Subject((lambda call=opened.call: call(*inputs)), opened.scope)  # type: ignore[misc]
    return subjects


def print_column(title: str, subjects: Mapping[str, Subject], rounds: int) -> None:
    """Time the subjects in turn and print their ratios to eager float, the best float's and int8's marked."""
    seconds = dict(timed(subjects, rounds))
    print(f"| {title} | ms | speed-up over eager float | processors |\n|---|---:|---:|---:|")
    for name, found in sorted(seconds.items(), key=lambda each: statistics.median(each[1][0])):
        ratios = [slow / fast for slow, fast in zip(seconds[EAGER][0], found[0], strict=True)]
        middle, (low, high) = statistics.median(ratios), median_interval(ratios)
        milliseconds = 1e3 * statistics.median(found[0])
        print(
            f"| {name} | {milliseconds:.3f} | {middle:.2f} ({low:.2f}–{high:.2f}) | {statistics.median(found[1]):.2f} |"
        )
    print(flush=True)


def timed(subjects: Mapping[str, Subject], rounds: int) -> Iterator[tuple[str, tuple[list[float], list[float]]]]:
    """Seconds a call, and processor seconds a second, of each subject in each round."""
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in subjects}
    for subject in subjects.values():
        block(subject, WARM_UP_S)
    for _ in range(rounds):
        for name in random.sample(list(subjects), len(subjects)):
            wall, processors = block(subjects[name], BLOCK_S)
            found[name][0].append(wall)
            found[name][1].append(processors)
    return iter(found.items())


def block(subject: Subject, least_s: float) -> tuple[float, float]:
    """Call for at least so long; seconds a call and processors used."""
    with subject.scope():
        subject.call()
        calls, began, cpu = 0, time.perf_counter(), time.process_time()
        while (elapsed := time.perf_counter() - began) < least_s:
            subject.call()
            calls += 1
        return elapsed / calls, (time.process_time() - cpu) / elapsed


def median_interval(values: list[float]) -> tuple[float, float]:
    """95% interval of the median by order statistics (a binomial's quantiles)."""
    from scipy.stats import binom

    ordered = sorted(values)
    rank = max(int(binom.ppf(0.025, len(ordered), 0.5)), 1)
    return ordered[rank - 1], ordered[-rank]


if __name__ == "__main__":
    main()
