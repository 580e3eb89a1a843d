"""The gate's rules on one candidate, each held against a row of the ``measurements`` table.

What is uncertain is judged by an interval: a rule is passed if the worse end satisfies it, failed if the better end
does not, and held in between. Undecided is never a reason to reject.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field

from storage.results import Row, caches_of, deciding, number, why_unknown
from tasks.extensions import RUNTIMES
from tasks.proof.doubts import BATCH_TOLERANCE
from tasks.refs import Frozen
from tasks.runtimes.operators import FloatOperator
from tasks.workload.workload import Gate, Workload

Outcome = Literal["passed", "held", "failed"]
_QUALITY = ("quality_difference", "quality_difference_low", "quality_difference_high", "higher_is_better")
# Known only once the candidate has been timed.
_TIMED = {"min_speedup", "max_peak_rss_bytes", "min_int8_time_share", "max_saturation"}


class RuleOutcome(Frozen):
    """One rule: what it asks for, the number that decides (None where there is none) and how it came out.

    ``held`` means that the rule could not be decided: its number is missing, or the bound lies within its interval.
    ``unknown`` says that the number is missing because it could not be measured or recorded this time.
    """

    name: str
    bound: float | str
    seen: float | str | None
    outcome: Outcome
    note: str = ""
    unknown: bool = Field(default=False, exclude=True)  # the note says it in the records

    def describe(self) -> str:
        """What the rule asked for and saw, in one line."""
        if self.name == "status":
            return f"failed in {self.note}"
        bound, seen = (
            "nothing" if value is None else f"{value:.6g}" if isinstance(value, float) else value
            for value in (self.bound, self.seen)
        )
        return f"{self.name} asks for {bound}, saw {seen}" + (f" ({self.note})" if self.note else "")


def rules_on(gate: Gate, row: Row) -> tuple[RuleOutcome, ...]:
    """Hold a row against every rule that the gate has; a candidate that failed breaks the first one."""
    if row["status"] != "ok":
        why = f"{text(row, 'stage') or 'a stage'}: {text(row, 'error') or 'no reason was recorded'}"
        return (RuleOutcome(name="status", bound="ok", seen=text(row, "status"), outcome="failed", note=why),)
    return tuple(_rules(gate, row))


def may_be_promoted(workload: Workload, row: Row) -> bool:
    """Whether a candidate that has not been timed yet could still be promoted: its speed is then worth deciding."""
    return hands_over(str(row["runtime"])) and all(
        rule.outcome == "passed" for rule in rules_on(workload.gate, row) if rule.name not in _TIMED
    )


def hands_over(runtime: str) -> bool:
    """Whether what was made for a runtime can be deployed."""
    # A row may be older than a runtime's removal: what cannot be opened is not promoted either.
    return runtime in RUNTIMES and RUNTIMES[runtime].hands_over


def finite(row: Row, column: str) -> float | None:
    """The number in a column; None where there is none."""
    value = number(row, column)
    return float(value) if value is not None and math.isfinite(value) else None


def text(row: Row, column: str) -> str | None:
    """The text in a column; None where there is none."""
    value = row.get(column)
    return None if value is None else str(value)


def _rules(gate: Gate, row: Row) -> Iterator[RuleOutcome]:
    if gate.max_quality_drop is not None:
        best, worst, note = _quality_drop(gate, row)
        columns = _QUALITY if gate.quality_drop == "absolute" else (*_QUALITY, "baseline_quality")
        why = why_unknown(row, *columns)
        yield _within("max_quality_drop", gate.max_quality_drop, _negated(worst), _negated(best), note, why)
    if gate.min_size_ratio is not None:
        ratio = finite(row, "size_ratio")
        yield _within("min_size_ratio", gate.min_size_ratio, ratio, ratio, why=why_unknown(row, "size_ratio"))
    if gate.min_speedup is not None:
        bounds = tuple(deciding(row, f"speedup_bound_{end}") for end in ("low", "high"))
        low, high = (finite(row, bound) for bound in bounds)
        note = "it was not timed to be decided" if low is None or high is None else f"from {low:.4g} to {high:.4g}"
        note += " with cold caches" if caches_of(row) == "cold" else ""
        yield _within("min_speedup", gate.min_speedup, low, high, note, why_unknown(row, *bounds))
    if gate.max_peak_rss_bytes is not None:
        peak, why = _negated(finite(row, "peak_rss_bytes")), why_unknown(row, "peak_rss_bytes")
        yield _within("max_peak_rss_bytes", gate.max_peak_rss_bytes, peak, peak, why=why)
    if gate.min_coverage is not None:
        coverage = finite(row, "coverage")
        yield _within("min_coverage", gate.min_coverage, coverage, coverage, why=why_unknown(row, "coverage"))
    if gate.min_int8_time_share is not None:
        share, why = finite(row, "int8_time_share"), why_unknown(row, "int8_time_share")
        yield _within("min_int8_time_share", gate.min_int8_time_share, share, share, _float_operators(row), why)
    if gate.max_saturation is not None:
        saturation, why = _negated(finite(row, "saturation")), why_unknown(row, "saturation")
        note = f"it computes by {_instructions(row)}"
        yield _within("max_saturation", gate.max_saturation, saturation, saturation, note, why)
    if gate.require_batch_invariance:
        apart, why = _negated(finite(row, "batch_difference")), why_unknown(row, "batch_difference")
        note = "how far rows together are from rows alone, as a share of the output's range"
        yield _within("max_batch_difference", BATCH_TOLERANCE, apart, apart, note, why)


def _float_operators(row: Row) -> str:
    """What takes its time in float, in words."""
    found = [FloatOperator.model_validate(each) for each in json.loads(text(row, "float_operators") or "[]")]
    return "; ".join(map(str, found[:3])) or "its runtime has no profiler"


def _instructions(row: Row) -> str:
    shares: object = row.get("instructions")  # a map column, also as pairs
    return ", ".join(dict(shares)) if isinstance(shares, Mapping | list) and shares else "unknown instructions"


def _within(
    name: str, bound: float, low: float | None, high: float | None, note: str = "", why: str = ""
) -> RuleOutcome:
    """Check an interval of which more is better against a bound; `max_` rules come with their signs turned.

    With a reason `why` a number is unknown that is needed, the rule holds, whatever else is there of the interval.
    """
    sign = -1 if name.startswith("max_") else 1
    if low is None or high is None or why:
        note = why.partition("\n")[0] or note
        return RuleOutcome(name=name, bound=float(bound), seen=None, outcome="held", note=note, unknown=bool(why))
    outcome: Outcome = "passed" if low >= sign * bound else "failed" if high < sign * bound else "held"
    # The end that decides; where neither does, the one that would have to be better.
    return RuleOutcome(
        name=name,
        bound=float(bound),
        seen=sign * (high if outcome == "failed" else low),
        outcome=outcome,
        note=note,
    )


def _quality_drop(gate: Gate, row: Row) -> tuple[float | None, float | None, str]:
    """The least and greatest drop within the interval, in the metric's unit or as a share of the baseline's quality.

    Where the metric has no interval both are the drop itself.
    """
    metric = text(row, "quality_metric") or "quality"
    difference, higher_is_better = finite(row, "quality_difference"), row.get("higher_is_better")
    if difference is None or higher_is_better is None:
        return None, None, f"no {metric} to compare"
    ends = [finite(row, f"quality_difference_{end}") for end in ("low", "high")]
    drops = sorted((-end if higher_is_better else end) for end in (difference if end is None else end for end in ends))
    note = f"{metric}, {'higher' if higher_is_better else 'lower'} is better"
    if gate.quality_drop == "relative":
        baseline = finite(row, "baseline_quality")
        if not baseline:
            why = f"the baseline's {metric} is {baseline}, of which there is no share: use quality_drop = 'absolute'"
            return None, None, why
        drops, note = [drop / abs(baseline) for drop in drops], f"share of the baseline's {metric}"
    if not all(map(math.isfinite, drops)):  # a share of next to nothing overflows
        return None, None, note
    if drops[0] < drops[1]:
        note += f"; from {drops[0]:.4g} to {drops[1]:.4g}"
    return drops[0], drops[1], note


def _negated(value: float | None) -> float | None:
    return None if value is None else -value
