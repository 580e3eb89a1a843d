"""The gate's rules for a row of the ``measurements`` table.

A rule passes if both ends of the measured interval satisfy the bound, and fails if neither end does. If the interval
contains the bound, the candidate is held, because an undecided rule does not justify a rejection.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from pydantic import BaseModel, ConfigDict

from storage.results import Row, caches_of, deciding, number, why_unknown
from tasks.workload.gate import Gate

_BATCH_NOTE = "distance between batched and separate outputs, as a fraction of the output's range"
_MOST_ROWS = 10_000_000  # more rows than anyone evaluates

OVER_BEST_FLOAT = "min_over_best_float"
CONSTANT = "constant_quality"  # the rule that the baseline must be better than the best constant answer

Outcome = Literal["passed", "held", "failed"]
_QUALITY = ("quality_difference", "quality_difference_low", "quality_difference_high", "higher_is_better")


class RuleOutcome(BaseModel):
    """The outcome of one rule; ``seen`` is the deciding value, or None if the value is unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    bound: float | str
    seen: float | str | None
    outcome: Outcome
    note: str = ""

    def describe(self) -> str:
        """Describe the rule's bound and the deciding value in one line."""
        if self.name == "status":
            return f"failed in {self.note}"
        if self.name == CONSTANT:
            return (
                f"the baseline's {self.note} is {_digits(self.seen or 0.0, 4)}, no better than the best constant "
                f"answer ({_digits(self.bound, 4)}); check the labels, the preprocessing and the weights"
            )
        verb = "allows" if self.name.startswith("max_") else "requires"
        bound = _digits(self.bound, 6)
        result = "the value is unknown" if self.seen is None else "the measured value is uncertain"
        if self.seen is not None and self.outcome != "held":
            seen = _digits(self.seen, 4)
            result = f"the measured value is {_digits(self.seen, 6) if seen == bound else seen}"
        return f"{self.name} {verb} {bound}, but {result}" + (f" ({self.note})" if self.note else "")


def _digits(value: float | str, digits: int) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if 10**digits <= abs(value) < 10**15 else f"{value:.{digits}g}"


@dataclass(frozen=True)
class RuleValue:
    """The interval that a rule checks, and the reason if it is ``unknown``.

    ``value`` is the estimate within the interval if more than ``samples`` samples would make the interval narrower.
    """

    ends: tuple[float | None, float | None]
    note: str = ""
    unknown: str = ""
    value: float | None = None
    samples: int = 0


@dataclass(frozen=True)
class Rule:
    """A gate rule; ``value_of`` gets a quantity from a row, and ``words`` and ``unit`` describe the quantity."""

    name: str
    direction: Literal["at least", "at most"]
    words: str
    unit: str
    value_of: Callable[[Gate, Row], RuleValue]
    known_after: Literal["evaluation", "timing", "diagnosis"] = "evaluation"

    def bound(self, gate: Gate) -> float | None:
        """Return the gate's bound for this rule, or None if the rule does not apply."""
        bound: float | None = gate.over_best_float if self.name == OVER_BEST_FLOAT else getattr(gate, self.name)
        return bound

    def check(self, gate: Gate, row: Row, bound: float) -> RuleOutcome:
        """Check a row against the bound."""
        seen = self.value_of(gate, row)
        low, high = seen.ends
        if low is None or high is None or seen.unknown:
            note = seen.unknown.partition("\n")[0] or seen.note
            return RuleOutcome(name=self.name, bound=float(bound), seen=None, outcome="held", note=note)
        # After multiplication by the sign, larger numbers are better.
        sign = 1 if self.direction == "at least" else -1
        worse, better = (low, high) if self.direction == "at least" else (-high, -low)
        outcome: Outcome = "passed" if worse >= sign * bound else "failed" if better < sign * bound else "held"
        # The interval's end that determined the outcome, or the worse end if the outcome is undecided.
        decides = sign * (better if outcome == "failed" else worse)
        note = seen.note
        if outcome == "held" and seen.value is not None and seen.samples:
            needed = rows_to_decide(seen.value, low, high, bound, seen.samples)
            enough = f"about {needed:,} would decide" if needed else "the loss is too close to the bound to decide"
            note += f"; {seen.samples:,} samples do not decide, {enough}"
        return RuleOutcome(name=self.name, bound=float(bound), seen=decides, outcome=outcome, note=note)


def rows_to_decide(drop: float, low: float, high: float, bound: float, rows: int) -> int | None:
    """Return about how many rows would move an undecided interval to one side of a bound, or None if too many would.

    The interval of a paired difference shrinks with the square root of the number of rows. See Connor, "Sample size for
    testing differences in proportions for the paired-sample design", Biometrics 43(1), 1987.
    """
    margin, half = abs(bound - drop), high - drop if drop <= bound else drop - low
    if margin * math.sqrt(_MOST_ROWS / rows) <= half:
        return None
    needed = rows * (half / margin) ** 2
    step: int = 10 ** max(0, math.floor(math.log10(max(needed, 1))) - 1)
    return math.ceil(needed / step) * step


def rules_on(gate: Gate, row: Row, *, timed: bool = True) -> tuple[RuleOutcome, ...]:
    """Check a row against the gate's rules, or only against those that need no timing if `timed` is false.

    A candidate that failed breaks only the ``status`` rule. If the baseline does not beat the best constant answer, the
    other numbers mean nothing, so the result contains only the ``constant_quality`` rule, which is held.
    """
    if row["status"] != "ok":
        why = f"{text(row, 'stage') or 'a stage'}: {text(row, 'error') or 'no reason was recorded'}"
        return (RuleOutcome(name="status", bound="ok", seen=text(row, "status"), outcome="failed", note=why),)
    constant, baseline = finite(row, CONSTANT), finite(row, "baseline_quality")
    if constant is not None and baseline is not None:
        gain = baseline - constant if row.get("higher_is_better") else constant - baseline
        if gain <= 0:
            note = text(row, "quality_metric") or "quality"
            return (RuleOutcome(name=CONSTANT, bound=constant, seen=baseline, outcome="held", note=note),)
    # Float candidates are not compared with the fastest of themselves, and without a float candidate that could be
    # deployed, nothing is faster.
    is_compared = row.get("best_float") is not None and not is_float(row)
    rules = [rule for rule in RULES.values() if rule.name != OVER_BEST_FLOAT or is_compared]
    applicable = ((rule, rule.bound(gate)) for rule in rules if timed or rule.known_after == "evaluation")
    return tuple(rule.check(gate, row, bound) for rule, bound in applicable if bound is not None)


def can_fail_after_timing(gate: Gate) -> bool:
    """Return whether the gate has a rule on memory or proofs, which are measured after all launches."""
    return any(rule.known_after == "diagnosis" and rule.bound(gate) is not None for rule in RULES.values())


def is_float(row: Row) -> bool:
    """Return whether a row's candidate computes in float32."""
    method = text(row, "method")  # unknown for a bundle whose recipe the workload file no longer has
    return method == "none" if method is not None else not finite(row, "coverage")


def finite(row: Row, column: str) -> float | None:
    """Return the number in a column, or None if the number is missing or not finite."""
    value = number(row, column)
    return float(value) if value is not None and math.isfinite(value) else None


def text(row: Row, column: str) -> str | None:
    """Return the text in a column, or None if the text is missing."""
    value = row.get(column)
    return None if value is None else str(value)


def _column(column: str, gate: Gate, row: Row, note: Callable[[Row], str] = lambda row: "") -> RuleValue:
    value = finite(row, column)
    return RuleValue((value, value), note(row), why_unknown(row, column))


def _interval(row: Row, stem: str, *more: str) -> RuleValue:
    columns = (f"{stem}_low", f"{stem}_high")
    low, high = (finite(row, column) for column in columns)
    note = "" if low is None or high is None else f"interval: {low:.4g} to {high:.4g}"
    return RuleValue((low, high), note, why_unknown(row, *columns, *more))


def _speedup(gate: Gate, row: Row) -> RuleValue:
    seen = _interval(row, deciding(row, "speedup_bound"))
    caches = " with cold caches" if caches_of(row) == "cold" else ""
    return replace(seen, note=(seen.note or "its speedup has no bounds") + caches)


def _over_best_float(gate: Gate, row: Row) -> RuleValue:
    seen = _interval(row, "over_best_float_bound", "over_best_float")
    note = f"{text(row, 'best_float')} is the fastest float candidate"
    return replace(seen, note=f"{note}; {seen.note}" if seen.note else note)


def _quality_drop(gate: Gate, row: Row) -> RuleValue:
    """Return the ends of the quality drop's interval, in the metric's unit or relative to the baseline's quality."""
    relative = gate.quality_drop == "relative"
    unknown = why_unknown(row, *_QUALITY, *(("baseline_quality",) if relative else ()))
    metric = text(row, "quality_metric") or "quality"
    difference, higher_is_better = finite(row, "quality_difference"), row.get("higher_is_better")
    if difference is None or higher_is_better is None:
        return RuleValue((None, None), f"no {metric} to compare", unknown)
    known = [finite(row, f"quality_difference_{end}") for end in ("low", "high")]
    ends = [difference if end is None else end for end in known]
    drops = sorted(-end if higher_is_better else end for end in ends)
    note = f"{metric}, {'higher' if higher_is_better else 'lower'} is better"
    baseline = finite(row, "baseline_quality")
    if relative:
        if not baseline:
            why = f"the baseline's {metric} is {baseline}, so use quality_drop = 'absolute'"
            return RuleValue((None, None), why, unknown)
        drops, note = [drop / abs(baseline) for drop in drops], f"share of the baseline's {metric}, {baseline:.3g}"
    if not all(map(math.isfinite, drops)):  # dividing by a baseline close to 0 can overflow
        return RuleValue((None, None), note, unknown)
    if drops[0] < drops[1]:
        note += f"; interval: {drops[0]:.4g} to {drops[1]:.4g}"
    value = (-difference if higher_is_better else difference) / (abs(baseline) if relative and baseline else 1.0)
    return RuleValue((drops[0], drops[1]), note, unknown, value, int(finite(row, "evaluation_samples") or 0))


def _float_operators(row: Row) -> str:
    described = []
    for operator in json.loads(text(row, "float_operators") or "[]")[:3]:
        where = f" of {operator['name']}" if operator["name"] else ""
        reason = f": {operator['reason']}" if operator.get("reason") else ""
        described.append(f"{operator['type']}{where}, {operator['share']:.0%} of the time{reason}")
    return "; ".join(described) or "its runtime has no profiler"


def _instructions(row: Row) -> str:
    shares: object = row.get("instructions")  # DuckDB may return a map column as a list of pairs
    names = ", ".join(dict(shares)) if isinstance(shares, Mapping | list) and shares else "unknown instructions"
    return f"it computes with {names}"


# The rules, in the order in which reports list them.
RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("max_quality_drop", "at most", "quality drop", "quality_metric", _quality_drop),
        Rule("min_size_ratio", "at least", "size ratio", "ratio", partial(_column, "size_ratio")),
        Rule("min_speedup", "at least", "speedup", "ratio", _speedup, known_after="timing"),
        Rule(
            OVER_BEST_FLOAT, "at least", "gain over the best float", "ratio", _over_best_float, known_after="timing"
        ),
        Rule(
            "max_peak_rss_bytes", "at most", "memory", "bytes", partial(_column, "peak_rss_bytes"),
            known_after="diagnosis",
        ),
        Rule("min_coverage", "at least", "coverage", "share", partial(_column, "coverage")),
        Rule(
            "min_int8_time_share", "at least", "time in int8", "share",
            partial(_column, "int8_time_share", note=_float_operators), known_after="diagnosis",
        ),
        Rule(
            "max_saturation", "at most", "saturation", "share", partial(_column, "saturation", note=_instructions),
            known_after="diagnosis",
        ),
        Rule(
            "max_batch_difference", "at most", "batch difference", "share",
            partial(_column, "batch_difference", note=lambda row: _BATCH_NOTE),
        ),
    )
}  # fmt: skip
