"""This project's int8 LSTM beside ONNX Runtime's dynamic int8, torch's, and float, on the tutorial's word model.

Run it where nothing else runs; it takes some minutes, one of them to compile::

    python -m benchmarks.int8_lstm --rounds 40

The subjects are timed on one thread in one process, in blocks of at least 0.12 s in random order. A ratio is the median
over rounds of ONNX Runtime's time over the subject's, with the 95% interval of that median by order statistics. The
model is ../shared/data/word_lm_wikitext2_small.pth with its text where they are there; elsewhere random weights of the
same shape are timed, and there is no loss to print. It needs the packages onnx and onnxruntime.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.word_lm import open_job, tutorial_loss
from storage.artifacts import ArtifactStore
from tasks.build import model_source
from tasks.data.samples import load_samples
from tasks.domains.language_model.domain import WordLanguageModel
from tasks.job import Job, Workspace
from tasks.outputs import intra_op_threads
from tasks.quantize.engine import quantized_engine
from tasks.quantize.int8_modules import align_for_aot_inductor
from tasks.quantize.methods import DynamicPerRow, DynamicPerRowRecipe
from tasks.quantize.operators import find_or_compile, load_libraries
from tasks.quantize.spec import spec_of
from tasks.runtimes.aot_compile import open_package
from tasks.workload import Workload

SHARED = Path(__file__).parents[2] / "shared" / "data"
WORDS, EMBEDDING, HIDDEN, LAYERS = 18_328, 512, 256, 5
BLOCK_S, WARM_UP_S = 0.12, 0.5
PEER = "ONNX Runtime int8"
OURS, OURS_EMBEDDING = "int8-per-row", "int8-per-row-embedding8"
SETS = ("amx", "avx512-vnni", "avx512", "avx2", "scalar")

Inputs = tuple[Tensor, Tensor, Tensor]
Subject = Callable[..., tuple[Tensor, Tensor, Tensor]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="timed blocks of each subject (default: %(default)s)")
    parser.add_argument("--isa", default="", help="time these instruction sets' kernels (default: all that run here)")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder with the checkpoint and its text")
    parser.add_argument("--no-loss", action="store_true", help="time only")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, intra_op_threads(1), torch.no_grad():
        workspace = Workspace(ArtifactStore(Path(folder) / "store"))
        job = found_job(arguments.shared, workspace)
        model = float_model(job, workspace)
        subjects = make_subjects(model, workspace, Path(folder))
        print_machine(random_weights=job is None)
        for steps in (1, 25):
            print_speed(subjects, inputs_of(model, steps), arguments.rounds)
        print_sets(subjects, model, arguments.isa.split(",") if arguments.isa else sets_here(), arguments.rounds)
        if job is not None and not arguments.no_loss:
            print_losses(subjects, job, workspace)


def found_job(shared: Path, workspace: Workspace) -> Job[Workload] | None:
    """The corpus and the checkpoint, where they are."""
    checkpoint = shared / "word_lm_wikitext2_small.pth"
    return open_job(str(shared / "wikitext-2-small"), str(checkpoint), workspace) if checkpoint.exists() else None


def float_model(job: Job[Workload] | None, workspace: Workspace) -> nn.Module:
    """The checkpoint's model, or one of its shape."""
    if job is not None:
        return model_source(job, workspace).float_model()
    torch.manual_seed(0)
    return WordLanguageModel(WORDS, EMBEDDING, HIDDEN, LAYERS, 0.5).eval()


def inputs_of(model: nn.Module, steps: int) -> Inputs:
    """Random words after no others, batch 1."""
    words = torch.randint(0, model.decoder.out_features, (steps, 1), generator=torch.Generator().manual_seed(steps))
    state = torch.zeros(model.rnn.num_layers, 1, model.rnn.hidden_size)
    return words, state, state.clone()


def make_subjects(model: nn.Module, workspace: Workspace, folder: Path) -> dict[str, Subject]:
    """Everything that is timed, by name."""
    load_libraries(find_or_compile(workspace).parent)
    converted = {OURS: per_row(model, None), OURS_EMBEDDING: per_row(model, 8)}
    return {
        "float/eager": model,
        "torch int8, traced": torch_int8(model),
        PEER: onnxruntime_int8(model, folder),
        **{f"{name}/eager": each for name, each in converted.items()},
        **{
            f"{name}/aot-inductor": aot(each, model, folder / f"{i}.pt2")
            for i, (name, each) in enumerate(converted.items())
        },
    }


def per_row(model: nn.Module, embedding_bits: int | None) -> nn.Module:
    """The model by the method `dynamic-per-row`."""
    recipe = DynamicPerRowRecipe(name="rows", method="dynamic-per-row", embedding_bits=embedding_bits)
    converter = DynamicPerRow().converter()
    return converter.pack(converter.skeleton(copy.deepcopy(model), spec_of(recipe), "", {}))


def aot(model: nn.Module, exact: nn.Module, path: Path) -> Subject:
    """The model exported, compiled ahead of time and loaded."""
    steps, batch = torch.export.Dim("steps"), torch.export.Dim("batch")
    shapes = {"tokens": {0: steps, 1: batch}, "h": {1: batch}, "c": {1: batch}}
    example = tuple(torch.cat([each, each], 1) for each in inputs_of(exact, 25))
    aligned = copy.deepcopy(model)
    align_for_aot_inductor(aligned)
    program = torch.export.export(aligned, example, dynamic_shapes=shapes, strict=False)
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return open_package(path)


def torch_int8(model: nn.Module) -> Subject:
    """torch's own dynamic int8, traced and frozen."""
    with quantized_engine("x86"):
        small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.LSTM, nn.Linear}, dtype=torch.qint8)
        return torch.jit.freeze(torch.jit.trace(small, inputs_of(model, 25), check_trace=False).eval())


def onnxruntime_int8(model: nn.Module, folder: Path) -> Subject:
    """The float model exported to ONNX and quantized there, dynamically with signed weights; one thread."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    exported, quantized = folder / "float.onnx", folder / "int8.onnx"
    names = ["tokens", "h", "c"]
    torch.onnx.export(
        model, inputs_of(model, 25), str(exported), dynamo=False, opset_version=17, input_names=names,
        output_names=["logits", "h_after", "c_after"], dynamic_axes={"tokens": {0: "steps"}, "logits": {0: "steps"}},
    )  # fmt: skip
    quantize_dynamic(exported, quantized, weight_type=QuantType.QInt8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(quantized), options, providers=["CPUExecutionProvider"])

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        arrays = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
        return tuple(map(torch.from_numpy, session.run(None, arrays)))

    return call


def seconds_of(subject: Subject, inputs: Inputs, least_s: float = BLOCK_S) -> float:
    """Seconds of one call, over a block of at least so many."""
    calls, began = 0, time.perf_counter()
    while (taken := time.perf_counter() - began) < least_s:
        subject(*inputs)
        calls += 1
    return taken / calls


def timed(subjects: dict[str, Subject], inputs: Inputs, rounds: int) -> dict[str, list[float]]:
    """Seconds a call of every subject in every round, warm, in random order."""
    for subject in subjects.values():
        seconds_of(subject, inputs, WARM_UP_S)
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    shuffled = random.Random(0)
    for _ in range(rounds):
        for name in shuffled.sample(list(subjects), len(subjects)):
            seconds[name].append(seconds_of(subjects[name], inputs))
    return seconds


def median_with_interval(values: list[float]) -> tuple[float, float, float]:
    """Median and its 95% interval by order statistics (binomial, no assumption about the distribution)."""
    ordered, count = sorted(values), len(values)
    tail, rank = 0.0, 0
    while rank < count // 2 and (tail := tail + math.comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    low = max(rank - 1, 0)
    return statistics.median(ordered), ordered[low], ordered[count - 1 - low]


def print_machine(*, random_weights: bool) -> None:
    """What was measured, and on what."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown processor")
    import onnxruntime

    weights = "random weights" if random_weights else "the tutorial's checkpoint"
    print(
        f"{processor} with {', '.join(sets_here())}; torch {torch.__version__}, onnxruntime {onnxruntime.__version__}; "
        f"one thread; {weights}.\n"
    )


def print_speed(subjects: dict[str, Subject], inputs: Inputs, rounds: int) -> None:
    """Milliseconds, and the ratio to the peer round by round."""
    seconds, steps = timed(subjects, inputs, rounds), len(inputs[0])
    exact = subjects["float/eager"](*inputs)[0]
    print(f"| {steps} token{'s' if steps > 1 else ''}, batch 1 | ms | × {PEER} | 95% interval | difference of logits |")
    print("|---|---:|---:|---:|---:|")
    for name, taken in seconds.items():
        ratios = [peer / own for peer, own in zip(seconds[PEER], taken, strict=True)]
        ratio, low, high = median_with_interval(ratios)
        off = ((subjects[name](*inputs)[0] - exact).norm() / exact.norm()).item()
        median = 1e3 * statistics.median(taken)
        print(f"| {name} | {median:.3f} | {ratio:.2f} | {low:.2f} – {high:.2f} | {100 * off:.2f}% |", flush=True)
    print()


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    """Run the block with one set's kernels."""
    before = os.environ.get("NIGHTQUANT_ISA", "")
    os.environ["NIGHTQUANT_ISA"] = name
    try:
        yield
    finally:
        os.environ["NIGHTQUANT_ISA"] = before


def sets_here() -> list[str]:
    """Instruction sets that the processor has, the fastest first."""
    from tasks.quantize.int8_modules import Int8Linear

    layer, found = Int8Linear(nn.Linear(1, 1)), []
    for name in SETS:
        with instruction_set(name):
            try:
                layer(torch.zeros(1, 1))
            except RuntimeError:
                continue
        found.append(name)
    return found


def print_sets(subjects: dict[str, Subject], model: nn.Module, sets: list[str], rounds: int) -> None:
    """Print milliseconds of each instruction set's kernels, beside the peer, which uses its best kernels."""

    def limited_to(name: str) -> Subject:
        def call(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            with instruction_set(name):
                return subjects[OURS + "/eager"](*inputs)

        return call

    by_set = {PEER: subjects[PEER], **{name: limited_to(name) for name in sets}}
    for steps in (1, 25):
        seconds = timed(by_set, inputs_of(model, steps), rounds)
        print(f"| {steps} token{'s' if steps > 1 else ''}, by instruction set | ms | × {PEER} | 95% |")
        print("|---|---:|---:|---:|")
        for name, taken in seconds.items():
            ratio, low, high = median_with_interval([p / o for p, o in zip(seconds[PEER], taken, strict=True)])
            print(
                f"| {name} | {1e3 * statistics.median(taken):.3f} | {ratio:.2f} | {low:.2f} – {high:.2f} |", flush=True
            )
        print()


def print_losses(subjects: dict[str, Subject], job: Job[Workload], workspace: Workspace) -> None:
    """The loss on the test text as the tutorial computes it: batch size 1, 25 words a call."""
    ids = load_samples(job.dataset, "test", workspace.store)["tokens"].long()
    example = model_source(job, workspace).example_inputs
    print(f"| loss on {len(ids):,} words | | difference | s |\n|---|---:|---:|---:|")
    exact = math.nan
    for name, subject in subjects.items():
        began = time.perf_counter()
        loss = tutorial_loss(subject, ids, example)
        exact = loss if math.isnan(exact) else exact
        print(f"| {name} | {loss:.6f} | {loss - exact:+.6f} | {time.perf_counter() - began:.1f} |", flush=True)


if __name__ == "__main__":
    main()
