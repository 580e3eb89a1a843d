"""What a candidate's time goes into: the operators that its runtime's own profiler saw, and what they compute in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

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
