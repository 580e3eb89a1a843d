"""The gate: which candidates may be promoted, and whether one of them replaces the bundle that is current.

Pure logic over rows of the ``measurements`` table: a decision can be made again from the results alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from storage.results import Decision, Row, deciding
from tasks.extensions import RUNTIMES
from tasks.judgement import GateDecision, Judgement, Standing, explained
from tasks.results import Incumbent, UnknownIncumbent
from tasks.workload.gate import Gate, finite, rules_on, text
from tasks.workload.workload import Workload


def judge(
    workload: Workload,
    rows: Iterable[Row],
    incumbent: Incumbent | UnknownIncumbent | None,
    *,
    withdrawn: Collection[str] = (),
) -> Judgement:
    """Decide on every candidate but the baseline, and on the current bundle.

    A candidate that failed, or fails a rule, is rejected; one with a rule that cannot be decided is held; the others
    pass. Of those whose runtime can be handed over, the best by the gate's objective is promoted, but a good incumbent
    is replaced only by a challenger that is decidedly better: by its direct ratio of the same launches, by its size
    where that is the objective, or by a rule that is decided for the challenger and not for the incumbent. If the
    current bundle could not be looked up or measured, nothing is promoted, and what would pass is held.

    Parameters
    ----------
    rows
        Rows with the columns of the ``measurements`` table; those of other workloads and settings are passed over.
    incumbent
        The current bundle; None only if it is certain that there is none.
    withdrawn
        Candidates (``recipe/runtime``) whose content somebody rolled back from: they are never promoted.
    """
    # What this machine cannot have was not measured, so nothing is decided on it.
    mine = [row for row in rows if row["workload"] == workload.name and row["status"] != "skipped"]
    tonight = {_candidate(row): row for row in mine if row["setting"] == "primary"}
    decisions = {
        name: _decide(workload.gate, row) for name, row in tonight.items() if name != workload.benchmark.baseline
    }
    passing = [name for name, each in decisions.items() if each.decision == "pass" and hands_over(each.runtime)]
    for name in withdrawn:
        if name in passing:
            passing.remove(name)
            why = "somebody rolled back from this content, and it stays withdrawn"
            decisions[name] = explained(decisions[name], "pass", why)
    # Names come last, so that equal candidates are decided between in the same way every night.
    passing.sort(key=lambda name: (*_rank(workload.gate, tonight[name]), name))
    if incumbent is None:
        if passing:
            _promote(decisions, passing[0], _best_of(workload.gate, passing))
        return Judgement(decisions=tuple(decisions.values()))
    if isinstance(incumbent, UnknownIncumbent):
        return _hold_all(decisions, passing, incumbent.version, incumbent.reason)
    held = tonight.get(incumbent.same_as) or next((row for row in mine if row["setting"] == "incumbent"), None)
    if unknown := _unmeasured(incumbent, held):
        return _hold_all(decisions, passing, incumbent.version, unknown)
    standing = _replace(workload.gate, incumbent, held, {name: tonight[name] for name in passing}, decisions)
    return Judgement(decisions=tuple(decisions.values()), incumbent=standing)


def may_be_promoted(workload: Workload, row: Row) -> bool:
    """Return whether a candidate that has not been timed yet could still be promoted: its speed is worth deciding."""
    outcomes = rules_on(workload.gate, row, timed=False)
    return hands_over(str(row["runtime"])) and all(rule.outcome == "passed" for rule in outcomes)


def hands_over(runtime: str) -> bool:
    """Return whether what was made for a runtime can be deployed."""
    # A row may be older than a runtime's removal: what cannot be opened is not promoted either.
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
        why = "another passing candidate is better" if hands_over(runtime) else f"{runtime} is never handed over"
        reason = f"passes all {len(rules)} rules; {why}"
    else:
        wanted = "failed" if decision == "reject" else "held"
        reason = "; ".join(rule.describe() for rule in rules if rule.outcome == wanted)
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
    held: Row | None,
    passing: dict[str, Row],
    decisions: dict[str, GateDecision],
) -> Standing:
    """Decide between the incumbent and those that pass, best first; enter the promotion into `decisions`."""
    unfit = _unfit(gate, incumbent, held)
    better = {name: why for name, row in passing.items() if (why := _better(gate, row, held))}
    if unfit and passing:
        best = next(iter(passing))
        reason = f"{unfit}; {best} replaces it"
        _promote(decisions, best, f"{_best_of(gate, passing)}; the incumbent goes: {unfit}")
    elif unfit:
        reason = f"no candidate passes that could replace it, although {unfit}"
    elif better:
        best, why = next(iter(better.items()))
        reason = f"{best} replaces it: {why}"
        _promote(decisions, best, f"{_best_of(gate, passing)}; {why}")
    else:
        reason = "it passes, and no challenger is decidedly better" if passing else "no challenger passes"
        if incumbent.same_as in passing:
            _promote(decisions, incumbent.same_as, reason)
        for name in passing.keys() - {incumbent.same_as}:
            why = f"the incumbent stays: {_undecided(gate, passing[name], held)}"
            decisions[name] = explained(decisions[name], "pass", why)
    replaced = any(each.decision == "promote" and name != incumbent.same_as for name, each in decisions.items())
    return Standing(version=incumbent.version, stays=not replaced, reason=reason)


def _unmeasured(incumbent: Incumbent, held: Row | None) -> str:
    """Return why the current bundle can be called neither good nor bad; "" if it can."""
    if incumbent.outdated or incumbent.fault:
        return ""
    if incumbent.failure is not None:
        return f"{incumbent.failure.stage}: {incumbent.failure.error}"
    if held is None:
        return "it was not measured"
    # A stage may fail for reasons that are not the bundle's: it was killed, say, or took too long on a busy machine.
    return "" if held["status"] == "ok" else f"{text(held, 'stage')}: {text(held, 'error')}"


def _unfit(gate: Gate, incumbent: Incumbent, held: Row | None) -> str:
    if incumbent.outdated:
        return incumbent.outdated
    if incumbent.fault:
        return f"it cannot be used any more ({incumbent.fault})"
    failed = [rule.describe() for rule in rules_on(gate, held) if rule.outcome == "failed"] if held else []
    return f"it no longer passes: {'; '.join(failed)}" if failed else ""


def _better(gate: Gate, row: Row, held: Row | None) -> str:
    if held is None:
        return ""
    if gate.objective == "fastest":
        low, value = (finite(row, deciding(row, f"over_incumbent{end}")) for end in ("_low", ""))
        if low is not None and value is not None and low > gate.margin:
            return f"{value:.3g} times as fast as the incumbent in the same launches, at least {low:.3g} times"
    else:
        size, before = finite(row, "size_bytes"), finite(held, "size_bytes")
        if size and before and before / size > gate.margin:
            return f"{before / size:.3g} times as small as the incumbent"
    # Speed is left to the direct ratio: two equals may well be decided differently against the baseline. A number that
    # is missing says nothing about the current bundle.
    open_rules = [
        rule
        for rule in rules_on(gate, held)
        if rule.outcome == "held" and rule.name != "min_speedup" and rule.seen is not None
    ]
    return f"passes where the incumbent is undecided: {open_rules[0].describe()}" if open_rules else ""


def _undecided(gate: Gate, row: Row, held: Row | None) -> str:
    low, high = (finite(row, deciding(row, f"over_incumbent_{end}")) for end in ("low", "high"))
    if gate.objective == "smallest":
        return f"this one is not more than {gate.margin:g} times as small"
    if low is None or high is None:
        return "this one was not timed beside it"
    return f"this one is between {low:.3g} and {high:.3g} times as fast, more than {gate.margin:g} is asked for"


def _promote(decisions: dict[str, GateDecision], name: str, reason: str) -> None:
    decisions[name] = decisions[name].model_copy(update={"decision": "promote", "reason": reason})


def _best_of(gate: Gate, passing: Sequence[str] | dict[str, Row]) -> str:
    return f"{gate.objective} of {len(passing)} passing candidate{'s' if len(passing) > 1 else ''}"


def _candidate(row: Row) -> str:
    return f"{row['recipe']}/{row['runtime']}"


def _rank(gate: Gate, row: Row) -> tuple[float, float]:
    """Smaller is better by the gate's objective."""
    speed, size = -(finite(row, deciding(row, "speedup")) or 0.0), finite(row, "size_bytes")
    size = math.inf if size is None else size
    return (speed, size) if gate.objective == "fastest" else (size, speed)
