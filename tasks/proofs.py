"""Operators that candidates executed, from their runtimes' own profilers, and the conclusions from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from pydantic import ConfigDict, Field

from tasks.refs import Frozen, ModuleCoverage
from tasks.workload.gate import BATCH_TOLERANCE

TOP = 5
# "convert" operators lie between int8 and float; "other" ones do not compute, but allocate or make views.
Arithmetic = Literal["int8", "float", "convert", "other"]


class Operator(Frozen):
    """An operator, or all operators of one name, with its seconds; ``name`` begins with the module's path, if known."""

    name: str = ""
    type: str
    arithmetic: Arithmetic
    seconds: float


class FloatOperator(Frozen):
    """An operator that stayed float, with its share of the time; ``reason`` is why its module did, if known."""

    name: str
    type: str
    share: float
    reason: str = ""


class Proof(Frozen):
    """The operators and instructions that one candidate executed.

    ``int8_time_share`` is the share of operator time spent in int8, and ``float_operators`` are the most expensive ones
    in float; without a profiler of the runtime, they are None and (). ``instructions`` maps families of instructions to
    shares of the time, if the system allows sampling. ``saturation`` is the distance between outputs
    with and without saturation, as a share of their range. It is 0 if products cannot saturate, and None if unknown.
    ``doubts`` are warnings that int8 may not have run as promised.
    """

    # Keep NaN in JSON, because null would mean that the number was not measured.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    int8_time_share: float | None = None
    float_operators: tuple[FloatOperator, ...] = ()
    instructions: dict[str, float] | None = None
    saturation: float | None = None
    doubts: tuple[str, ...] = ()


class ProofReport(Frozen):
    """Proofs by subject; ``refused`` has the reasons for missing proofs, ``unsampled`` the reason for no sampling."""

    proofs: dict[str, Proof]
    refused: dict[str, str] = Field(default={})
    unsampled: str = ""


def typical(operators: Iterable[Operator]) -> list[Operator]:
    """Return one operator per name and type with the median seconds, because other programs may disturb a call."""
    seconds: dict[tuple[str, str, Arithmetic], list[float]] = {}
    for operator in operators:
        seconds.setdefault((operator.name, operator.type, operator.arithmetic), []).append(operator.seconds)
    return [
        Operator(name=name, type=kind, arithmetic=arithmetic, seconds=median(taken))
        for (name, kind, arithmetic), taken in seconds.items()
    ]


def int8_share(operators: Iterable[Operator]) -> float:
    """Return the share of the operators' time spent in int8; 0 if there are no operators."""
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


def doubt_about_batches(difference: float | None) -> str:
    """Return a warning if the rows of a batch affect each other; "" if they do not, or if this is unknown."""
    if difference is None or not BATCH_TOLERANCE < difference < math.inf:  # NaN is not a difference
        return ""
    return f"rows of a batch are not independent: outputs differ by up to {difference:.1%} of their range"


def owner(name: str, coverage: Sequence[ModuleCoverage]) -> ModuleCoverage | None:
    """Return the module that a node is named after; None if its name does not contain a module."""
    owners = [row for row in coverage if row.module and f"{name}/".startswith((f"{row.module}/", f"{row.module}."))]
    return max(owners, key=lambda row: len(row.module), default=None)
