"""The gate: decide which candidates may be promoted, and whether a candidate replaces the current bundle.

The functions are pure: the same rows of the ``measurements`` table always lead to the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from storage.results import Decision, Row, deciding
from tasks.extensions import RUNTIMES
from tasks.judgement import GateDecision, Judgement, Standing, explained
from tasks.results import Incumbent, UnknownIncumbent
from tasks.workload.gate import OVER_BEST_FLOAT, Gate, finite, rules_on, text
from tasks.workload.workload import Workload

_RATIOS = ("min_speedup", "min_over_best_float")
DOES_NOT_PAY = "int8 does not pay here: a float candidate is faster than every quantized candidate"
_NEEDED_OF_FLOATS = ("status", "constant_quality", "max_quality_drop", "max_batch_difference")


def judge(
    workload: Workload,
    rows: Iterable[Row],
    incumbent: Incumbent | UnknownIncumbent | None,
    *,
    withdrawn: Collection[str] = (),
) -> Judgement:
    """Return the decisions about the current bundle and the candidates.

    The gate rejects a candidate that failed or breaks a rule, and holds a candidate if a rule is undecided. Among the
    passing candidates that can be deployed, the gate promotes the best by ``objective``. A candidate replaces a good
    current bundle only if it is clearly better, or passes a rule that is undecided for the bundle. If the current
    bundle could not be looked up or measured, the gate holds all passing candidates. The baseline is left out unless it
    is a float candidate that could be deployed and satisfies every rule.

    Parameters
    ----------
    rows
        Rows with the columns of the ``measurements`` table; rows of other workloads and settings are ignored.
    incumbent
        The current bundle; pass None only if it is certain that no bundle is current.
    withdrawn
        Candidates (``recipe/runtime``) with the same content as a withdrawn bundle; the gate never promotes them.
    """
    # Candidates that this host cannot run were not measured, so the gate does not decide on them.
    measured = [row for row in rows if row["workload"] == workload.name and row["status"] != "skipped"]
    tonight = {_candidate(row): row for row in measured if row["setting"] == "primary"}
    decisions = {name: _decide(workload.gate, row) for name, row in tonight.items()}
    baseline = tonight.get(workload.baseline_name)
    if baseline is not None and not (
        could_serve(workload, baseline) and decisions[workload.baseline_name].decision == "pass"
    ):
        del decisions[workload.baseline_name]
    passing = [name for name, item in decisions.items() if item.decision == "pass" and hands_over(item.runtime)]
    for name in withdrawn:
        if name in passing:
            passing.remove(name)
            why = "this content was rolled back, and stays withdrawn"
            decisions[name] = explained(decisions[name], "pass", why)
    # The name comes last in the sort key, so that equal candidates have the same order every night.
    passing.sort(key=lambda name: (*_rank(workload.gate, tonight[name]), name))
    if incumbent is None:
        if passing:
            _promote(decisions, passing[0], _best_of(workload.gate, passing) + _no_gain(decisions))
        return Judgement(decisions=tuple(decisions.values()))
    if isinstance(incumbent, UnknownIncumbent):
        return _hold_all(decisions, passing, incumbent.version, incumbent.reason)
    current = tonight.get(incumbent.same_as) or next((row for row in measured if row["setting"] == "incumbent"), None)
    if unknown := _unmeasured(incumbent, current):
        return _hold_all(decisions, passing, incumbent.version, unknown)
    standing = _replace(workload.gate, incumbent, current, {name: tonight[name] for name in passing}, decisions)
    return Judgement(decisions=tuple(decisions.values()), incumbent=standing)


def may_be_promoted(workload: Workload, row: Row) -> bool:
    """Return whether the candidate meets all conditions for promotion that do not depend on timing."""
    outcomes = rules_on(workload.gate, row, timed=False)
    return hands_over(str(row["runtime"])) and all(rule.outcome == "passed" for rule in outcomes)


def could_serve(workload: Workload, row: Row) -> bool:
    """Return whether a float candidate could be deployed instead of a quantized candidate; its size does not matter."""
    quality = [rule for rule in rules_on(workload.gate, row, timed=False) if rule.name in _NEEDED_OF_FLOATS]
    return (
        text(row, "method") == "none"
        and hands_over(str(row["runtime"]))
        and all(r.outcome == "passed" for r in quality)
    )


def hands_over(runtime: str) -> bool:
    """Return whether a runtime's candidates can be deployed."""
    # Candidates for a runtime that nightquant no longer supports cannot be promoted.
    return runtime in RUNTIMES and RUNTIMES[runtime].hands_over


def _hold_all(decisions: dict[str, GateDecision], passing: Sequence[str], version: str, unknown: str) -> Judgement:
    for name in passing:
        decisions[name] = explained(decisions[name], "hold", f"the current bundle is unknown: {unknown}")
    standing = Standing(
        version=version or None,
        stays=True if version else None,
        reason=f"it is unknown ({unknown}), so nothing is promoted",
    )
    return Judgement(decisions=tuple(decisions.values()), incumbent=standing, unknown=unknown)


def _decide(gate: Gate, row: Row) -> GateDecision:
    rules, runtime = rules_on(gate, row), str(row["runtime"])
    outcomes = {rule.outcome for rule in rules}
    decision: Decision = "reject" if "failed" in outcomes else "hold" if "held" in outcomes else "pass"
    if decision == "pass":
        why = "another passing candidate is better" if hands_over(runtime) else f"{runtime} is never deployed"
        reason = f"passes all {len(rules)} rules; {why}"
    else:
        outcome = "failed" if decision == "reject" else "held"
        reason = "; ".join(rule.describe() for rule in rules if rule.outcome == outcome)
    return GateDecision(
        recipe=str(row["recipe"]),
        runtime=runtime,
        decision=decision,
        objective=gate.objective,
        rules=rules,
        reason=reason,
        artifact_digest=text(row, "artifact_digest"),
    )


def _replace(
    gate: Gate,
    incumbent: Incumbent,
    current: Row | None,
    passing: dict[str, Row],
    decisions: dict[str, GateDecision],
) -> Standing:
    """Choose between the current bundle and the passing candidates (best first); record promotions in `decisions`."""
    unfit = _unfit(gate, incumbent, current)
    better = {name: why for name, row in passing.items() if (why := _advantage(gate, row, current))}
    if unfit and passing:
        best = next(iter(passing))
        reason = f"{unfit}; {best} replaces it"
        why = f"{_best_of(gate, passing)}; it replaces the current bundle: {unfit}{_no_gain(decisions)}"
        _promote(decisions, best, why)
    elif unfit:
        reason = f"no candidate passes that could replace it, although {unfit}"
    elif better:
        best, why = next(iter(better.items()))
        reason = f"{best} replaces it: {why}"
        _promote(decisions, best, f"{_best_of(gate, passing)}; {why}{_no_gain(decisions)}")
    else:
        reason = "it passes, and no challenger is decidedly better" if passing else "no challenger passes"
        if incumbent.same_as in passing:
            _promote(decisions, incumbent.same_as, reason)
        for name in passing.keys() - {incumbent.same_as}:
            why = f"the current bundle stays: {_undecided(gate, passing[name], current)}"
            decisions[name] = explained(decisions[name], "pass", why)
    replaced = any(decision.decision == "promote" and name != incumbent.same_as for name, decision in decisions.items())
    return Standing(version=incumbent.version, stays=not replaced, reason=reason)


def _unmeasured(incumbent: Incumbent, current: Row | None) -> str:
    """Return the reason that the current bundle cannot be judged, or ``""`` if it can be judged."""
    if incumbent.outdated or incumbent.fault:
        return ""
    if incumbent.failure is not None:
        return f"{incumbent.failure.stage}: {incumbent.failure.error}"
    if current is None:
        return "it was not measured"
    # A stage may fail even if the bundle is good, for example if the process is killed or the host is busy.
    return "" if current["status"] == "ok" else f"{text(current, 'stage')}: {text(current, 'error')}"


def _unfit(gate: Gate, incumbent: Incumbent, current: Row | None) -> str:
    if incumbent.outdated:
        return incumbent.outdated
    if incumbent.fault:
        return f"it can no longer be used ({incumbent.fault})"
    failed = [rule.describe() for rule in rules_on(gate, current) if rule.outcome == "failed"] if current else []
    return f"it no longer passes: {'; '.join(failed)}" if failed else ""


def _advantage(gate: Gate, row: Row, current: Row | None) -> str:
    if current is None:
        return ""
    if gate.objective == "fastest":
        low, value = (finite(row, deciding(row, f"over_incumbent{end}")) for end in ("_low", ""))
        if low is not None and value is not None and low > gate.margin:
            return f"{value:.3g} times as fast as the current bundle in the same launches, at least {low:.3g} times"
    else:
        size, before = finite(row, "size_bytes"), finite(current, "size_bytes")
        if size and before and before / size > gate.margin:
            return f"{before / size:.3g} times as small as the current bundle"
    # Ignore rules about ratios to the baseline, because the measured ratios of equally fast candidates may differ.
    # A missing number does not count against the current bundle.
    open_rules = [
        rule
        for rule in rules_on(gate, current)
        if rule.outcome == "held" and rule.name not in _RATIOS and rule.seen is not None
    ]
    return f"passes a rule that is undecided for the current bundle: {open_rules[0].describe()}" if open_rules else ""


def _undecided(gate: Gate, row: Row, current: Row | None) -> str:
    low, high = (finite(row, deciding(row, f"over_incumbent_{end}")) for end in ("low", "high"))
    if gate.objective == "smallest":
        return f"this candidate is not more than {gate.margin:g} times as small"
    if low is None or high is None:
        return "this candidate was not timed in the same launches"
    return f"this candidate is {low:.3g} to {high:.3g} times as fast, and more than {gate.margin:g} is required"


def _promote(decisions: dict[str, GateDecision], name: str, reason: str) -> None:
    decisions[name] = decisions[name].model_copy(update={"decision": "promote", "reason": reason})


def _best_of(gate: Gate, passing: Sequence[str] | dict[str, Row]) -> str:
    return f"{gate.objective} of {len(passing)} passing candidate{'s' if len(passing) > 1 else ''}"


def pays(decisions: Iterable[GateDecision]) -> bool:
    """Return whether int8 pays: whether any quantized candidate may be faster than the fastest float candidate."""
    outcomes = [rule.outcome for each in decisions for rule in each.rules if rule.name == OVER_BEST_FLOAT]
    return not outcomes or any(outcome != "failed" for outcome in outcomes)


def _no_gain(decisions: Mapping[str, GateDecision]) -> str:
    return "" if pays(decisions.values()) else f"; {DOES_NOT_PAY}"


def _candidate(row: Row) -> str:
    return f"{row['recipe']}/{row['runtime']}"


def _rank(gate: Gate, row: Row) -> tuple[float, float]:
    """Return a sort key for the gate's ``objective``; smaller keys are better."""
    speed, size = -(finite(row, deciding(row, "speedup")) or 0.0), finite(row, "size_bytes")
    size = math.inf if size is None else size
    return (size, speed) if gate.objective == "smallest" else (speed, size)
