"""What candidates executed: the operators that their runtimes' own profilers saw, and what follows from these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from pydantic import ConfigDict, Field

from tasks.refs import Frozen, ModuleCoverage
from tasks.workload.gate import BATCH_TOLERANCE

TOP = 5
# "convert" stands between int8 and float, "other" computes nothing: it allocates or gives views.
Arithmetic = Literal["int8", "float", "convert", "other"]


class Operator(Frozen):
    """An operator, or all of one name, with its seconds; ``name`` begins with its module's path, if known."""

    name: str = ""
    type: str
    arithmetic: Arithmetic
    seconds: float


class FloatOperator(Frozen):
    """An operator that stayed float, with its share of the time, and why its module did, where that is known."""

    name: str
    type: str
    share: float
    reason: str = ""


class Proof(Frozen):
    """What one candidate executed.

    ``int8_time_share`` is the share of its operators' time in those that compute in int8, ``float_operators`` the most
    expensive others, both by its runtime's profiler (None and () without one). ``instructions`` are shares of its time
    by family of instructions, if the system lets programs be sampled. ``saturation`` is the distance of its outputs
    from the same arithmetic without saturation, as a share of their range: 0 if its products cannot saturate, None if
    unknown. ``doubts`` say what speaks against int8 having run as promised.
    """

    # NaN stays NaN on its way through JSON: as null it would look like a number that nobody asked for.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    int8_time_share: float | None = None
    float_operators: tuple[FloatOperator, ...] = ()
    instructions: dict[str, float] | None = None
    saturation: float | None = None
    doubts: tuple[str, ...] = ()


class ProofReport(Frozen):
    """Proofs by subject, why there is none of the others, and why nothing was sampled, "" where it was."""

    proofs: dict[str, Proof]
    refused: dict[str, str] = Field(default={})
    unsampled: str = ""


def typical(seen: Iterable[Operator]) -> list[Operator]:
    """One operator for each name and type, with the median seconds: others may have had the processor meanwhile."""
    seconds: dict[tuple[str, str, Arithmetic], list[float]] = {}
    for operator in seen:
        seconds.setdefault((operator.name, operator.type, operator.arithmetic), []).append(operator.seconds)
    return [
        Operator(name=name, type=kind, arithmetic=arithmetic, seconds=median(taken))
        for (name, kind, arithmetic), taken in seconds.items()
    ]


def int8_share(operators: Iterable[Operator]) -> float:
    """Share of the operators' time in those that compute in int8; 0 where there are none."""
    found = list(operators)
    total = sum(operator.seconds for operator in found)
    return sum(operator.seconds for operator in found if operator.arithmetic == "int8") / total if total else 0.0


def most_expensive_floats(
    operators: Sequence[Operator], coverage: Sequence[ModuleCoverage] = ()
) -> tuple[FloatOperator, ...]:
    """The operators in float that take most of the time, the first one most."""
    total = sum(operator.seconds for operator in operators)
    floats = [operator for operator in operators if operator.arithmetic == "float" and operator.seconds > 0]
    found = []
    for each in sorted(floats, key=lambda each: -each.seconds)[:TOP]:
        module = owner(each.name, coverage)
        reason = module.reason if module else ""
        found.append(FloatOperator(name=each.name, type=each.type, share=each.seconds / total, reason=reason))
    return tuple(found)


def doubt_about_batches(difference: float | None) -> str:
    """Whether rows that are computed together see each other; "" where they do not, or where nobody looked."""
    if difference is None or not BATCH_TOLERANCE < difference < math.inf:  # NaN is not a difference
        return ""
    return f"rows of a batch are not independent: outputs differ by up to {difference:.1%} of their range"


def owner(name: str, coverage: Sequence[ModuleCoverage]) -> ModuleCoverage | None:
    """The module that a node is named after; None where its name says nothing of one."""
    of = [each for each in coverage if each.module and f"{name}/".startswith((f"{each.module}/", f"{each.module}."))]
    return max(of, key=lambda each: len(each.module), default=None)
