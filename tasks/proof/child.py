"""What every candidate of a workload executes, found in a process of its own; `tasks.benchmark.child` runs it.

Each candidate runs twice for a moment: under its runtime's own profiler, which has names, and sampled, which has
instructions. Its coverage says what was converted; what ran may raise doubts about that.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from storage.errors import UnavailableError
from tasks.benchmark.messages import ChildSpec, Subject
from tasks.benchmark.processors import choose_processors
from tasks.extensions import RUNTIMES
from tasks.machine import affinity, require_installed
from tasks.outputs import distance, tensors_of, worst
from tasks.proof.instructions import INT8, SATURATING, Disassembler, Family, Sampler
from tasks.proofs import Operator, Proof, ProofReport, int8_share, most_expensive_floats, owner
from tasks.refs import ModuleCoverage
from tasks.runtimes.base import Opened
from tasks.tensor_files import Golden

_PROFILED_S, _SAMPLED_S = 0.1, 0.2
_MOST_CALLS, _DISASSEMBLED = 200, 400
# Arithmetic below this share of the samples is an edge of the kernels, not what they are made of.
_NOTICED = 0.02

_PRODUCT = re.compile(r"conv(?!ert)|addmm|linear|gemm|fullyconnected|lstm|gru|rnn|matmul", re.IGNORECASE)
# Not the products of two activations, as in attention, which no module has weights for.
_OF_TWO_ACTIVATIONS = re.compile(r"b?matmul|bmm", re.IGNORECASE)
_PRODUCT_MODULE = re.compile(r"Conv|Linear|LSTM|GRU|RNN")
# Always folded into the product before it; a ReLU is not, behind an addition for instance.
_FOLDED = re.compile(r"batch_?norm", re.IGNORECASE)


def run(spec_json: str) -> ProofReport:
    """Look at each subject of a `ChildSpec`; why one was not looked at is in the report."""
    spec = ChildSpec.model_validate_json(spec_json)
    if allowed := affinity():
        with suppress(OSError):  # some sandboxes forbid it
            os.sched_setaffinity(0, choose_processors(spec.threads, allowed))
    torch.set_num_threads(spec.threads)
    # Before any runtime starts threads: only those that are started afterwards inherit it.
    try:
        require_installed("Naming the instructions that ran", ["capstone"], "instructions")
        sampler, why_not = Sampler(), ""
    except UnavailableError as error:
        sampler, why_not = None, str(error)
    proofs: dict[str, Proof] = {}
    refused: dict[str, str] = {}
    for subject in spec.subjects:
        try:
            proofs[subject.name] = _look(subject, spec.threads, sampler)
        except Exception as error:  # noqa: BLE001 - whatever one candidate raises is its result, and the others go on
            refused[subject.name] = f"{type(error).__name__}: {error}"
    return ProofReport(proofs=proofs, refused=refused, unsampled=why_not)


def _look(subject: Subject, threads: int, sampler: Sampler | None) -> Proof:
    files = subject.files()
    runtime, inputs = RUNTIMES[subject.runtime], list(Golden.read(Path(subject.golden)).inputs.values())
    with torch.inference_mode():
        opener = runtime.opener()
        opened = opener.open(files, threads)
        with opened.scope():
            call = partial(opened.call, *inputs)
            calls = min(_MOST_CALLS, max(1, int(_PROFILED_S / _seconds(call))))
            families = sample(sampler, call) if sampler else None
        operators = opener.profile(files, opened, inputs, threads, calls)
        saturation = _saturation(opened, partial(opener.reference, files, threads), inputs, families or {})
    coverage = files.made().coverage
    doubts = doubts_about(operators, coverage, families, saturation, runtime.saturation_noticed)
    return Proof(
        int8_time_share=int8_share(operators) if operators else None,
        float_operators=most_expensive_floats(operators, coverage),
        instructions=families,
        saturation=saturation,
        doubts=tuple(dict.fromkeys(doubts)),
    )


def _seconds(call: Callable[[], object]) -> float:
    """Of the second call: the first one may compile."""
    call()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def sample(sampler: Sampler, call: Callable[[], object]) -> dict[str, float]:
    """Shares of the time in each family of instructions, those that are noticed."""
    counted = count_families(sampler, call)
    total = counted.total()
    return {family: times / total for family, times in counted.most_common() if times >= _NOTICED * total}


def count_families(sampler: Sampler, call: Callable[[], object]) -> Counter[Family]:
    """How many samples of a fifth of a second of calls fall into each family of instructions."""
    sampler.start()
    until = time.perf_counter() + _SAMPLED_S
    while time.perf_counter() < until:
        call()
    counters = sampler.stop()
    # Disassembling takes longer than sampling; a share of this many is known to 5 points at worst.
    return Disassembler().families(counters[:: 1 + len(counters) // _DISASSEMBLED])


def _saturation(
    opened: Opened, reference: Callable[[], Opened | None], inputs: Sequence[Tensor], families: Mapping[str, float]
) -> float | None:
    """How far the outputs are from the reference's, as a share of their range; 0 where no product can saturate."""
    if not SATURATING & families.keys():
        return 0.0 if INT8 & families.keys() else None
    exact = reference()
    if exact is None:
        return None
    return worst(*map(distance, tensors_of(opened(*inputs)), tensors_of(exact(*inputs))))


def doubts_about(
    operators: Sequence[Operator],
    coverage: Sequence[ModuleCoverage],
    instructions: Mapping[str, float] | None,
    saturation: float | None,
    saturation_noticed: float = 0.0,
) -> Iterator[str]:
    """What was noticed, each in one sentence without a full stop; nothing of a float candidate.

    `saturation_noticed` is how far outputs may be off from the reference's without saturation, as a share of the range.
    """
    if not any(module.quantized for module in coverage):
        return
    yield from _in_float(operators, coverage)
    yield from _in_int8(operators, coverage)
    if any(operator.arithmetic == "int8" for operator in operators):
        for operator in operators:
            if operator.arithmetic == "float" and operator.seconds > 0 and _FOLDED.search(operator.type):
                name = f" ({operator.name})" if operator.name else ""
                yield f"{operator.type}{name} runs in float by itself: it was not fused into the product before it"
    if saturation is not None and saturation > saturation_noticed and SATURATING & (instructions or {}).keys():
        yield f"products saturate: outputs are off by {saturation:.1%} of their range"


def _in_float(operators: Sequence[Operator], coverage: Sequence[ModuleCoverage]) -> Iterator[str]:
    """Products in float of modules that count as quantized; one without a name may be of any float module."""
    leftover = [each for each in coverage if not each.quantized and _PRODUCT_MODULE.search(each.type)]
    for operator in operators:
        if operator.arithmetic != "float" or operator.seconds <= 0 or not _PRODUCT.search(operator.type):
            continue
        module = owner(operator.name, coverage)
        if module is None and (leftover or _OF_TWO_ACTIVATIONS.search(operator.type)):
            continue
        if module is None or module.quantized:
            of = f" of {module.module}, which counts as quantized," if module else ""
            yield f"{operator.type}{of} runs in float"


def _in_int8(operators: Sequence[Operator], coverage: Sequence[ModuleCoverage]) -> Iterator[str]:
    """Products in int8 of modules that were to stay float: ONNX Runtime quantizes some weights when it loads them."""
    for operator in operators:
        module = owner(operator.name, coverage) if operator.arithmetic == "int8" else None
        if module and not module.quantized and _PRODUCT.search(operator.type) and _PRODUCT_MODULE.search(module.type):
            yield f"{operator.type} of {module.module}, which counts as float, runs in int8"
