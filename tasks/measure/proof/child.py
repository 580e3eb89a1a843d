"""Record the operators and instructions that candidates execute, and report operators that contradict the coverage."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from storage.errors import UnavailableError
from tasks.data.outputs import distance, tensors_of, worst
from tasks.data.tensor_files import Golden
from tasks.environment.machine import affinity, require_installed
from tasks.measure.benchmark.launch import pin
from tasks.measure.benchmark.messages import ChildSpec, Subject
from tasks.measure.benchmark.rounds import warm_up
from tasks.measure.proof.instructions import INT8, SATURATING, Disassembler, Family, Sampler
from tasks.runtimes.base import Opened, runtime_named
from tasks.values.proofs import (
    Operator,
    Proof,
    ProofReport,
    doubts_about_kernels,
    int8_share,
    most_expensive_floats,
    owner,
)
from tasks.values.refs import ModuleCoverage

_PROFILED_S, _SAMPLED_S = 0.1, 0.2
_MOST_CALLS, _DISASSEMBLED = 200, 400
# Ignore instruction families with less than this fraction of the samples, which occur only at the edges of kernels.
_NOTICED = 0.02

_PRODUCT = re.compile(r"conv(?!ert)|addmm|linear|gemm|fullyconnected|lstm|gru|rnn|matmul", re.IGNORECASE)
# Products of two activations, as in attention, do not belong to a module with weights.
_OF_TWO_ACTIVATIONS = re.compile(r"b?matmul|bmm", re.IGNORECASE)
_PRODUCT_MODULE = re.compile(r"Conv|Linear|LSTM|GRU|RNN")
# Operators that are always folded into the preceding product, unlike ReLU, which may follow an addition.
_FOLDED = re.compile(r"batch_?norm", re.IGNORECASE)


def run(spec_json: str, _wait: object = None) -> ProofReport:
    """Make a proof for each subject of a `ChildSpec`, or report the error that prevented the proof."""
    spec = ChildSpec.model_validate_json(spec_json)
    pin(spec.threads, affinity())
    # Create the sampler before any runtime starts threads, because only later threads inherit the sampler's events.
    try:
        require_installed("Naming the instructions that ran", ["capstone"], "instructions")
        sampler, unsampled = Sampler(), ""
    except UnavailableError as error:
        sampler, unsampled = None, str(error)
    proofs: dict[str, Proof] = {}
    refused: dict[str, str] = {}
    for subject in spec.subjects:
        try:
            proofs[subject.key] = _prove(subject, spec.threads, sampler)
        except Exception as error:  # noqa: BLE001 - the error of one candidate must not stop the other candidates
            refused[subject.key] = f"{type(error).__name__}: {error}"
    return ProofReport(proofs=proofs, refused=refused, unsampled=unsampled)


def _prove(subject: Subject, threads: int, sampler: Sampler | None) -> Proof:
    files = subject.files()
    runtime, inputs = runtime_named(subject.name.runtime), list(Golden.read(Path(subject.golden)).inputs.values())
    with torch.inference_mode():
        opener = runtime.opener()
        opened = opener.open(files, threads)
        with opened.scope():
            call = partial(opened.call, *inputs)
            call()  # the first call may include compilation
            calls = min(_MOST_CALLS, max(1, int(_PROFILED_S / warm_up(call, 1, 0.0))))
            families: dict[str, float] | None = None
            if sampler:
                counts = count_families(sampler, call)
                least = _NOTICED * counts.total()
                families = {name: count / counts.total() for name, count in counts.most_common() if count >= least}
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


def count_families(sampler: Sampler, call: Callable[[], object]) -> Counter[Family]:
    """Sample calls for 0.2 s and count samples per instruction family."""
    sampler.start()
    until = time.perf_counter() + _SAMPLED_S
    while time.perf_counter() < until:
        call()
    counters = sampler.stop()
    # Use only some samples, because disassembling is slow; the error of a fraction is at most 5 percentage points.
    return Disassembler().families(counters[:: 1 + len(counters) // _DISASSEMBLED])


def _saturation(
    opened: Opened, reference: Callable[[], Opened | None], inputs: Sequence[Tensor], families: Mapping[str, float]
) -> float | None:
    """Return the saturation error as a fraction of the output's range, or None if it is unknown."""
    if not SATURATING & families.keys():
        return 0.0 if INT8 & families.keys() else None
    if (exact := reference()) is None:
        return None
    return worst(*map(distance, tensors_of(opened(*inputs)), tensors_of(exact(*inputs))))


def doubts_about(
    operators: Sequence[Operator],
    coverage: Sequence[ModuleCoverage],
    instructions: Mapping[str, float] | None,
    saturation: float | None,
    saturation_noticed: float = 0.0,
) -> Iterator[str]:
    """Yield warnings as sentences without full stops; a float candidate is only checked for slow kernels.

    A saturation error of up to `saturation_noticed` (a fraction of the output's range) is not reported.
    """
    if not any(module.quantized for module in coverage):
        yield from doubts_about_kernels(most_expensive_floats(operators))
        return
    yield from _in_float(operators, coverage)
    yield from _in_int8(operators, coverage)
    if any(operator.arithmetic == "int8" for operator in operators):
        for operator in operators:
            if operator.arithmetic == "float" and operator.seconds > 0 and _FOLDED.search(operator.type):
                name = f" ({operator.name})" if operator.name else ""
                yield f"{operator.type}{name} runs in float on its own: it was not fused into the preceding product"
    if saturation is not None and saturation > saturation_noticed and SATURATING & (instructions or {}).keys():
        yield f"products saturate: outputs are off by {saturation:.1%} of their range"


def _in_float(operators: Sequence[Operator], coverage: Sequence[ModuleCoverage]) -> Iterator[str]:
    """Yield warnings about float products in quantized modules; ignore products that may belong to a float module."""
    float_modules = [module for module in coverage if not module.quantized and _PRODUCT_MODULE.search(module.type)]
    for operator in operators:
        if operator.arithmetic != "float" or operator.seconds <= 0 or not _PRODUCT.search(operator.type):
            continue
        module = owner(operator.name, coverage)
        if module is None and (float_modules or _OF_TWO_ACTIVATIONS.search(operator.type)):
            continue
        if module is None or module.quantized:
            origin = f" of {module.module}, which counts as quantized," if module else ""
            yield f"{operator.type}{origin} runs in float"


def _in_int8(operators: Sequence[Operator], coverage: Sequence[ModuleCoverage]) -> Iterator[str]:
    """Yield warnings about int8 products in float modules; ONNX Runtime may quantize weights when it loads a model."""
    for operator in operators:
        module = owner(operator.name, coverage) if operator.arithmetic == "int8" else None
        if module and not module.quantized and _PRODUCT.search(operator.type) and _PRODUCT_MODULE.search(module.type):
            yield f"{operator.type} of {module.module}, which counts as float, runs in int8"
