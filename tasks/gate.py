"""The gate: which candidates may be promoted, and which one is.

Pure logic over rows of the ``measurements`` table: a decision can be made again from the results alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal

from storage.digest import canonical_json
from tasks.refs import Frozen
from tasks.runtimes import RUNTIMES
from tasks.workload.workload import Gate, Workload

Row = Mapping[str, Any]
Outcome = Literal["passed", "held", "failed"]
Decision = Literal["promote", "pass", "hold", "reject"]


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
    latest: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = (row["recipe"], row["runtime"])
        primary = row["workload"] == workload.name and row["setting"] == "primary"
        if primary and (key not in latest or row["attempt"] >= latest[key]["attempt"]):
            latest[key] = row
    candidates = [row for key, row in latest.items() if key != workload.baseline()]
    decided = [_decide(workload.gate, row) for row in candidates]
    passing = [index for index, each in enumerate(decided) if each.decision == "pass" and _hands_over(each.runtime)]
    if passing:
        order = _ORDERS[workload.gate.objective]
        best = min(passing, key=lambda index: order(candidates[index]))
        decided[best] = decided[best].model_copy(
            update={"decision": "promote", "reason": _why_best(workload.gate, len(passing))}
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
) -> list[dict[str, Any]]:
    """Rows of the ``promotions`` table; `bundle_version` goes to the promoted candidate's."""
    return [
        {
            "run_id": run_id,
            "night": night,
            "workload": workload,
            "recipe": decision.recipe,
            "runtime": decision.runtime,
            "decision": decision.decision,
            "decided_at": decided_at,
            "objective": decision.objective,
            "rules": canonical_json([rule.model_dump(mode="json") for rule in decision.rules]),
            "reason": decision.reason,
            "bundle_version": bundle_version if decision.decision == "promote" else None,
            "artifact_digest": decision.artifact_digest,
        }
        for decision in decisions
    ]


def _decide(gate: Gate, row: Row) -> GateDecision:
    rules = (_failure(row),) if row["status"] != "ok" else tuple(_rules(gate, row))
    decision: Decision = "pass"
    if any(rule.outcome == "failed" for rule in rules):
        decision = "reject"
    elif any(rule.outcome == "held" for rule in rules):
        decision = "hold"
    return GateDecision(
        recipe=row["recipe"],
        runtime=row["runtime"],
        decision=decision,
        objective=gate.objective,
        rules=rules,
        reason=_reason(decision, rules, row["runtime"]),
        artifact_digest=row.get("artifact_digest"),
    )


def _failure(row: Row) -> RuleOutcome:
    stage, error = row.get("stage") or "a stage", row.get("error") or "no reason was recorded"
    return RuleOutcome(name="status", bound="ok", seen=row["status"], outcome="failed", note=f"{stage}: {error}")


def _rules(gate: Gate, row: Row) -> Iterator[RuleOutcome]:
    conclusive = row.get("verdict") in gate.allowed_verdicts
    yield RuleOutcome(
        name="allowed_verdicts",
        bound=" or ".join(gate.allowed_verdicts),
        seen=row.get("verdict"),
        outcome="passed" if conclusive else "held",
    )
    if gate.max_quality_drop is not None:
        drop, note = _quality_drop(gate, row)
        yield _at_most("max_quality_drop", gate.max_quality_drop, drop, note)
    if gate.min_size_ratio is not None:
        yield _at_least("min_size_ratio", gate.min_size_ratio, row.get("size_ratio"))
    if gate.min_speedup is not None:
        # A slow figure out of an inconclusive benchmark is no reason to reject, nor a fast one to promote.
        speedup = row.get("speedup_low") if conclusive else None
        yield _at_least("min_speedup", gate.min_speedup, speedup, "" if conclusive else "the benchmark is inconclusive")
    if gate.max_peak_rss_bytes is not None:
        yield _at_most("max_peak_rss_bytes", gate.max_peak_rss_bytes, row.get("peak_rss_bytes"))
    if gate.min_coverage is not None:
        yield _at_least("min_coverage", gate.min_coverage, row.get("coverage"))


def _quality_drop(gate: Gate, row: Row) -> tuple[float | None, str]:
    """How much worse than the baseline, in the metric's unit or as a share of its quality; below 0 is better."""
    metric = row.get("quality_metric") or "quality"
    difference, higher_is_better = _finite(row.get("quality_difference")), row.get("higher_is_better")
    if difference is None or higher_is_better is None:
        return None, f"no {metric} to compare"
    drop = -difference if higher_is_better else difference
    if gate.quality_drop == "absolute":
        return drop, f"{metric}, {'higher' if higher_is_better else 'lower'} is better"
    baseline = _finite(row.get("baseline_quality"))
    if not baseline:
        return None, f"the baseline's {metric} is {baseline}, of which there is no share: use quality_drop = 'absolute'"
    return drop / abs(baseline), f"share of the baseline's {metric}"


def _at_most(name: str, bound: float, seen: float | None, note: str = "") -> RuleOutcome:
    number = _finite(seen)
    return _outcome(name, bound, number, number is not None and number <= bound, note)


def _at_least(name: str, bound: float, seen: float | None, note: str = "") -> RuleOutcome:
    number = _finite(seen)
    return _outcome(name, bound, number, number is not None and number >= bound, note)


def _outcome(name: str, bound: float, seen: float | None, good: bool, note: str) -> RuleOutcome:
    outcome: Outcome = "held" if seen is None else "passed" if good else "failed"
    return RuleOutcome(name=name, bound=float(bound), seen=seen, outcome=outcome, note=note)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _hands_over(runtime: str) -> bool:
    # A row may be older than a runtime's removal: what cannot be opened is not promoted either.
    return runtime in RUNTIMES and RUNTIMES[runtime].hands_over


def _reason(decision: Decision, rules: Sequence[RuleOutcome], runtime: str) -> str:
    if decision == "pass" and not _hands_over(runtime):
        return f"passes all {len(rules)} rules; {runtime} is measured but not handed over"
    if decision == "pass":
        return f"passes all {len(rules)} rules; another passing candidate is better"
    wanted = "failed" if decision == "reject" else "held"
    return "; ".join(_describe(rule) for rule in rules if rule.outcome == wanted)


def _describe(rule: RuleOutcome) -> str:
    if rule.name == "status":
        return f"failed in {rule.note}"
    seen = "nothing" if rule.seen is None else f"{rule.seen:.6g}" if isinstance(rule.seen, float) else rule.seen
    bound = f"{rule.bound:.6g}" if isinstance(rule.bound, float) else rule.bound
    return f"{rule.name} asks for {bound}, saw {seen}" + (f" ({rule.note})" if rule.note else "")


def _why_best(gate: Gate, passing: int) -> str:
    return f"{gate.objective} of {passing} passing candidate{'s' if passing > 1 else ''}"


def _by_speed(row: Row) -> tuple[float, float, str, str]:
    return (-(_finite(row.get("speedup")) or 0.0), _size(row), row["recipe"], row["runtime"])


def _by_size(row: Row) -> tuple[float, float, str, str]:
    return (_size(row), -(_finite(row.get("speedup")) or 0.0), row["recipe"], row["runtime"])


def _size(row: Row) -> float:
    size = _finite(row.get("size_bytes"))
    return math.inf if size is None else size


# Names come last, so that equal candidates are decided between in the same way every night.
_ORDERS = {"fastest": _by_speed, "smallest": _by_size}
