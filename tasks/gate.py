"""The gate: which candidates may be promoted, and which one is.

Pure logic over rows of the ``measurements`` table: a decision can be made again from the results alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from typing import Literal

from storage.digest import canonical_json
from storage.results import Decision, Row, number
from tasks.refs import Frozen
from tasks.runtimes import RUNTIMES
from tasks.workload.workload import Gate, Workload

Outcome = Literal["passed", "held", "failed"]


class RuleOutcome(Frozen):
    """One rule: what it asks for, the number it saw (None where there was none) and how it came out.

    ``held`` means that the rule could not be decided: its number is missing, or was measured inconclusively.
    """

    name: str
    bound: float | str
    seen: float | str | None
    outcome: Outcome
    note: str = ""


class GateDecision(Frozen):
    """What the gate decided on one candidate, rule by rule; ``reason`` is the decision in one line."""

    recipe: str
    runtime: str
    decision: Decision
    objective: Literal["fastest", "smallest"]
    rules: tuple[RuleOutcome, ...]
    reason: str
    artifact_digest: str | None = None

    @property
    def candidate(self) -> str:
        """``recipe/runtime``."""
        return f"{self.recipe}/{self.runtime}"


def judge(workload: Workload, rows: Iterable[Row]) -> tuple[GateDecision, ...]:
    """Decide on every candidate but the baseline, in the order of the rows.

    A candidate that failed, or fails a rule, is rejected; one with a rule that cannot be decided is held; of those that
    pass every rule and whose runtime can be handed over, the best by the gate's objective is promoted. The others
    merely pass.

    Parameters
    ----------
    rows
        Rows with the columns of the ``measurements`` table. Rows of other workloads and settings are passed over, and
        of several attempts at a candidate the last one counts.
    """
    gate, latest = workload.gate, dict[tuple[str, str], Row]()
    mine = (row for row in rows if row["workload"] == workload.name and row["setting"] == "primary")
    for row in sorted(mine, key=lambda row: number(row, "attempt") or 0):
        key = (str(row["recipe"]), str(row["runtime"]))
        latest[key] = row
    candidates = [(key, row) for key, row in latest.items() if key != workload.baseline()]
    decided = [_decide(gate, *key, row) for key, row in candidates]
    passing = [index for index, each in enumerate(decided) if each.decision == "pass" and _hands_over(each.runtime)]
    if passing:
        # Names come last, so that equal candidates are decided between in the same way every night.
        best = min(passing, key=lambda index: (*_rank(gate, candidates[index][1]), candidates[index][0]))
        count = f"{len(passing)} passing candidate{'s' if len(passing) > 1 else ''}"
        decided[best] = decided[best].model_copy(
            update={"decision": "promote", "reason": f"{gate.objective} of {count}"}
        )
    return tuple(decided)


def promotion_rows(
    decisions: Sequence[GateDecision],
    *,
    workload: str,
    run_id: str,
    night: date,
    decided_at: datetime,
    bundle_version: str | None = None,
) -> list[Row]:
    """Rows of the ``promotions`` table; `bundle_version` goes to the promoted candidate's."""
    return [
        {
            "run_id": run_id,
            "night": night,
            "workload": workload,
            "decided_at": decided_at,
            **decision.model_dump(exclude={"rules"}),
            "rules": canonical_json([rule.model_dump(mode="json") for rule in decision.rules]),
            "bundle_version": bundle_version if decision.decision == "promote" else None,
        }
        for decision in decisions
    ]


def _decide(gate: Gate, recipe: str, runtime: str, row: Row) -> GateDecision:
    rules = tuple(_rules(gate, row))
    outcomes = {rule.outcome for rule in rules}
    decision: Decision = "reject" if "failed" in outcomes else "hold" if "held" in outcomes else "pass"
    if decision == "pass":
        why = "another passing candidate is better" if _hands_over(runtime) else f"{runtime} is never handed over"
        reason = f"passes all {len(rules)} rules; {why}"
    else:
        wanted = "failed" if decision == "reject" else "held"
        reason = "; ".join(_describe(rule) for rule in rules if rule.outcome == wanted)
    return GateDecision(
        recipe=recipe,
        runtime=runtime,
        decision=decision,
        objective=gate.objective,
        rules=rules,
        reason=reason,
        artifact_digest=_text(row, "artifact_digest"),
    )


def _rules(gate: Gate, row: Row) -> Iterator[RuleOutcome]:
    if row["status"] != "ok":
        why = f"{_text(row, 'stage') or 'a stage'}: {_text(row, 'error') or 'no reason was recorded'}"
        yield RuleOutcome(name="status", bound="ok", seen=_text(row, "status"), outcome="failed", note=why)
        return
    verdict = _text(row, "verdict")
    conclusive = verdict in gate.allowed_verdicts
    allowed = " or ".join(gate.allowed_verdicts)
    yield RuleOutcome(name="allowed_verdicts", bound=allowed, seen=verdict, outcome="passed" if conclusive else "held")
    rules: dict[str, tuple[float | None, str]] = {
        "max_quality_drop": _quality_drop(gate, row),
        "min_size_ratio": (_finite(row, "size_ratio"), ""),
        # A slow figure out of an inconclusive benchmark is no reason to reject, nor a fast one to promote.
        "min_speedup": (_finite(row, "speedup_low"), "") if conclusive else (None, "the benchmark is inconclusive"),
        "max_peak_rss_bytes": (_finite(row, "peak_rss_bytes"), ""),
        "min_coverage": (_finite(row, "coverage"), ""),
    }
    for name, (value, note) in rules.items():
        bound: float | None = getattr(gate, name)
        if bound is not None:
            seen = value if value is not None and math.isfinite(value) else None  # a share of next to nothing overflows
            good = seen is not None and (seen >= bound if name.startswith("min_") else seen <= bound)
            outcome: Outcome = "held" if seen is None else "passed" if good else "failed"
            yield RuleOutcome(name=name, bound=float(bound), seen=seen, outcome=outcome, note=note)


def _quality_drop(gate: Gate, row: Row) -> tuple[float | None, str]:
    """How much worse than the baseline, in the metric's unit or as a share of its quality; below 0 is better."""
    metric = _text(row, "quality_metric") or "quality"
    difference, higher_is_better = _finite(row, "quality_difference"), row.get("higher_is_better")
    if difference is None or higher_is_better is None:
        return None, f"no {metric} to compare"
    drop = -difference if higher_is_better else difference
    if gate.quality_drop == "absolute":
        return drop, f"{metric}, {'higher' if higher_is_better else 'lower'} is better"
    baseline = _finite(row, "baseline_quality")
    if not baseline:
        return None, f"the baseline's {metric} is {baseline}, of which there is no share: use quality_drop = 'absolute'"
    return drop / abs(baseline), f"share of the baseline's {metric}"


def _hands_over(runtime: str) -> bool:
    # A row may be older than a runtime's removal: what cannot be opened is not promoted either.
    return runtime in RUNTIMES and RUNTIMES[runtime].hands_over


def _describe(rule: RuleOutcome) -> str:
    if rule.name == "status":
        return f"failed in {rule.note}"
    bound, seen = (
        "nothing" if value is None else f"{value:.6g}" if isinstance(value, float) else value
        for value in (rule.bound, rule.seen)
    )
    return f"{rule.name} asks for {bound}, saw {seen}" + (f" ({rule.note})" if rule.note else "")


def _rank(gate: Gate, row: Row) -> tuple[float, float]:
    """Smaller is better by the gate's objective."""
    speed, size = -(_finite(row, "speedup") or 0.0), _finite(row, "size_bytes")
    size = math.inf if size is None else size
    return (speed, size) if gate.objective == "fastest" else (size, speed)


def _finite(row: Row, column: str) -> float | None:
    value = number(row, column)
    return float(value) if value is not None and math.isfinite(value) else None


def _text(row: Row, column: str) -> str | None:
    value = row.get(column)
    return None if value is None else str(value)
