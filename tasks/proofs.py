"""What candidates executed: the operators that their runtimes' own profilers saw, and what follows from these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from pydantic import ConfigDict, Field

from tasks.refs import Frozen, ModuleCoverage

TOP = 5
# "convert" stands between int8 and float, "other" computes nothing: it allocates or gives views.
Arithmetic = Literal["int8", "float", "convert", "other"]


class Operator(Frozen):
    """An operator, or all of one name: its type, what it computes in, and its seconds in a profile.

    ``name`` is the node's, where the runtime says it, and begins with the path of the module that it comes from.
    """

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

    def __str__(self) -> str:
        where = f" of {self.name}" if self.name else ""
        return f"{self.type}{where}, {self.share:.0%} of the time" + (f": {self.reason}" if self.reason else "")


class Proof(Frozen):
    """What one candidate executed.

    ``int8_time_share`` is the share of its operators' time in those that compute in int8, ``float_operators`` the most
    expensive of the others, both by its runtime's profiler (None and () where it has none). ``instructions`` are the
    shares of its time in each family of instructions, where the system lets programs be sampled. ``saturation`` is how
    far its outputs are from the same arithmetic without saturation, as a share of their range: 0 where its products
    cannot saturate, None where that is not known. ``doubts`` say what speaks against int8 having run as promised.
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
    """One operator for each name and type, with the median of its seconds.

    On a busy machine single ones hold the time in which others had the processor.
    """
    seconds: dict[tuple[str, str, Arithmetic], list[float]] = {}
    for operator in seen:
        seconds.setdefault((operator.name, operator.type, operator.arithmetic), []).append(operator.seconds)
    return [
        Operator(name=name, type=kind, arithmetic=arithmetic, seconds=median(taken))
        for (name, kind, arithmetic), taken in seconds.items()
    ]


def int8_share(operators: Iterable[Operator]) -> float:
    """Share of the operators' time in those that compute in int8; 0 where there are none."""
    total, int8 = 0.0, 0.0
    for operator in operators:
        total += operator.seconds
        int8 += operator.seconds if operator.arithmetic == "int8" else 0.0
    return int8 / total if total else 0.0


def most_expensive_floats(
    operators: Sequence[Operator], coverage: Sequence[ModuleCoverage] = ()
) -> tuple[FloatOperator, ...]:
    """The operators in float that take most of the time, the first one most."""
    total = sum(operator.seconds for operator in operators)
    floats = [operator for operator in operators if operator.arithmetic == "float" and operator.seconds > 0]
    return tuple(
        FloatOperator(name=each.name, type=each.type, share=each.seconds / total, reason=_reason(each.name, coverage))
        for each in sorted(floats, key=lambda each: -each.seconds)[:TOP]
    )


def owner(name: str, coverage: Sequence[ModuleCoverage]) -> ModuleCoverage | None:
    """The module that a node is named after; None where its name says nothing of one."""
    of = [each for each in coverage if each.module and f"{name}/".startswith((f"{each.module}/", f"{each.module}."))]
    return max(of, key=lambda each: len(each.module), default=None)


def _reason(name: str, coverage: Sequence[ModuleCoverage]) -> str:
    module = owner(name, coverage)
    return module.reason if module else ""
