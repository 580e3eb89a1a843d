"""What speaks against int8 having run as the recipe promised: coverage says what was converted, a profile what ran."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from tasks.proof.instructions import SATURATING
from tasks.proofs import Operator, owner
from tasks.refs import ModuleCoverage
from tasks.workload.gate import BATCH_TOLERANCE

_PRODUCT = re.compile(r"conv(?!ert)|addmm|linear|gemm|fullyconnected|lstm|gru|rnn|matmul", re.IGNORECASE)
# Not the products of two activations, as in attention, which no module has weights for.
_OF_TWO_ACTIVATIONS = re.compile(r"b?matmul|bmm", re.IGNORECASE)
_PRODUCT_MODULE = re.compile(r"Conv|Linear|LSTM|GRU|RNN")
# Always folded into the product before it; a ReLU is not, behind an addition for instance.
_FOLDED = re.compile(r"batch_?norm", re.IGNORECASE)


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
                yield f"{_shown(operator)} runs in float by itself: it was not fused into the product before it"
    if saturation is not None and saturation > saturation_noticed and SATURATING & (instructions or {}).keys():
        yield f"products saturate: outputs are off by {saturation:.1%} of their range"


def doubt_about_batches(difference: float | None) -> str:
    """Whether rows that are computed together see each other; "" where they do not, or where nobody looked."""
    if difference is None or not BATCH_TOLERANCE < difference < math.inf:  # NaN is not a difference
        return ""
    return f"rows of a batch are not independent: outputs differ by up to {difference:.1%} of their range"


def _in_float(operators: Sequence[Operator], coverage: Sequence[ModuleCoverage]) -> Iterator[str]:
    """Products in float of modules that count as quantized.

    Where operators have no names, they may be of any module that stayed float, so that there must be none.
    """
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


def _shown(operator: Operator) -> str:
    return f"{operator.type} ({operator.name})" if operator.name else operator.type
