"""The operators that candidates executed, as reported by the runtimes' profilers, and the resulting warnings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Literal

from pydantic import ConfigDict, Field

from tasks.values.refs import Frozen, ModuleCoverage
from tasks.workload.gate import BATCH_TOLERANCE

TOP = 5
_ABSURD = 0.1  # a speed-up that no missing instruction explains
_NOTICED = 0.2  # a fraction of the time
# Kernels of float models that other runtimes avoid, as measured by ``benchmarks.slow_convolutions``.
_AVOIDABLE = (
    "aten::_slow_conv2d_forward",
    "aten::slow_conv3d_forward",
    "aten::slow_conv_transpose2d",
    "aten::mkldnn_rnn_layer",
)
_REMEDY = 'compare the "onnxruntime" and "aot-inductor" runtimes'
# ``"convert"`` operators convert between int8 and float; ``"other"`` operators allocate memory or create views.
Arithmetic = Literal["int8", "float", "convert", "other"]


class Operator(Frozen):
    """Time spent in one operator, or in all operators of one type; ``name`` begins with the module's path if known."""

    name: str = ""
    type: str
    arithmetic: Arithmetic
    seconds: float


class FloatOperator(Frozen):
    """A float operator, its fraction of operator time, and the reason that its module stayed in float."""

    name: str
    type: str
    share: float
    reason: str = ""


class Proof(Frozen):
    """The operators and instructions that one candidate executed; None means unknown, and ``doubts`` are warnings.

    ``instructions`` maps instruction families to fractions of the time. ``saturation`` is the distance between outputs
    with and without saturation, as a fraction of the output's range.
    """

    # Write NaN to JSON as ``NaN``, because ``null`` means that the number was not measured.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    int8_time_share: float | None = None
    float_operators: tuple[FloatOperator, ...] = ()
    instructions: dict[str, float] | None = None
    saturation: float | None = None
    doubts: tuple[str, ...] = ()


class ProofReport(Frozen):
    """Proofs, keyed by subject. ``refused`` explains missing proofs; ``unsampled`` explains missing instructions."""

    proofs: dict[str, Proof]
    refused: dict[str, str] = Field(default={})
    unsampled: str = ""


def typical(operators: Iterable[Operator]) -> list[Operator]:
    """Merge operators that have the same name, type and arithmetic; the median ignores calls that were disturbed."""
    seconds: dict[tuple[str, str, Arithmetic], list[float]] = {}
    for operator in operators:
        seconds.setdefault((operator.name, operator.type, operator.arithmetic), []).append(operator.seconds)
    return [
        Operator(name=name, type=kind, arithmetic=arithmetic, seconds=median(taken))
        for (name, kind, arithmetic), taken in seconds.items()
    ]


def int8_share(operators: Iterable[Operator]) -> float:
    """Return the fraction of operator time spent in int8, or 0 if `operators` is empty."""
    timed = list(operators)
    total = sum(operator.seconds for operator in timed)
    return sum(operator.seconds for operator in timed if operator.arithmetic == "int8") / total if total else 0.0


def most_expensive_floats(
    operators: Sequence[Operator], coverage: Sequence[ModuleCoverage] = ()
) -> tuple[FloatOperator, ...]:
    """Return the float operators that take the most time, in descending order."""
    total = sum(operator.seconds for operator in operators)
    floats = [operator for operator in operators if operator.arithmetic == "float" and operator.seconds > 0]
    expensive = []
    for operator in sorted(floats, key=lambda operator: -operator.seconds)[:TOP]:
        module = owner(operator.name, coverage)
        reason = module.reason if module else ""
        expensive.append(
            FloatOperator(name=operator.name, type=operator.type, share=operator.seconds / total, reason=reason)
        )
    return tuple(expensive)


def doubts_about_kernels(operators: Iterable[FloatOperator]) -> Iterator[str]:
    """Yield a warning for each kernel that takes a fifth of a float model's time, although other runtimes avoid it."""
    for operator in operators:
        if operator.share >= _NOTICED and operator.type in _AVOIDABLE:
            yield f"{operator.share:.0%} of the time is {operator.type}: {_REMEDY}"


def doubt_about_batches(difference: float | None) -> str:
    """Return a warning if the rows of a batch are known to affect each other; otherwise, return ``""``."""
    if difference is None or not BATCH_TOLERANCE < difference < math.inf:  # NaN: not comparable
        return ""
    return f"rows of a batch are not independent: outputs differ by up to {difference:.1%} of their range"


def doubt_about_speed(speedup: float) -> str:
    """Return a warning if a candidate is so slow that it probably runs without an optimized kernel, or ``""``."""
    return f"a call takes {1 / speedup:,.0f} times as long as the baseline's" if 0 < speedup < _ABSURD else ""


def owner(name: str, coverage: Sequence[ModuleCoverage]) -> ModuleCoverage | None:
    """Return the module whose path is in a node's name, or None if the name does not contain a module's path."""
    owners = [row for row in coverage if row.module and f"{name}/".startswith((f"{row.module}/", f"{row.module}."))]
    return max(owners, key=lambda row: len(row.module), default=None)
