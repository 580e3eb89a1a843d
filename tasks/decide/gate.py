"""The gate: decide which candidates may be promoted, and whether a candidate replaces the current bundle.

The functions are pure: the same rows of the ``measurements`` table always lead to the same decisions. The gate decides
before packaging; the store records `Judgement.packaged` or `Judgement.not_packaged`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from itertools import chain
from typing import TypeAlias

from storage.digest import canonical_json
from storage.humanize import plural
from storage.results import Decision, Row, candidate_of, deciding
from tasks.values.refs import Frozen, OfCandidate
from tasks.values.results import CurrentBundle, RunInfo, UnknownBundle
from tasks.workload.gate import Gate, Objective
from tasks.workload.recipe import RUNTIMES, CandidateName
from tasks.workload.rules import OVER_BEST_FLOAT, RuleOutcome, finite, rules_on, text
from tasks.workload.workload import Workload

_RATIOS = ("min_speedup", "min_over_best_float")
DOES_NOT_PAY = "int8 does not pay here: a float candidate is faster than every quantized candidate"
_WITHDRAWN = "this content was rolled back, and stays withdrawn"
_NEEDED_OF_FLOATS = ("status", "constant_quality", "max_quality_drop", "max_batch_difference")


class GateDecision(OfCandidate):
    """The gate's decision about one candidate, rule by rule; ``reason`` is a one-line summary."""

    decision: Decision
    objective: Objective
    rules: tuple[RuleOutcome, ...]
    reason: str
    artifact_digest: str | None = None

    def became(self, decision: Decision, why: str) -> GateDecision:
        """Return the decision about a candidate that passes every rule, with another outcome."""
        reason = f"passes all {len(self.rules)} rules; {why}"
        return self.model_copy(update={"decision": decision, "reason": reason})


Decisions: TypeAlias = dict[CandidateName, GateDecision]


class BundleDecision(Frozen):
    """The decision about the current bundle; ``version`` and ``stays`` are None if the version is unknown."""

    version: str | None
    stays: bool | None
    reason: str


class Judgement(Frozen):
    """A workload's decisions; ``unknown`` is the reason that the current bundle could not be judged, or ``""``."""

    decisions: tuple[GateDecision, ...]
    current: BundleDecision | None = None
    unknown: str = ""

    @property
    def promoted(self) -> GateDecision | None:
        """Decision about the candidate that becomes, or already is, the current bundle."""
        return next((decision for decision in self.decisions if decision.decision == "promote"), None)

    def packaged(self, version: str) -> Judgement:
        """Return the decisions after the promoted candidate has been packaged and `version` has become current."""
        bundle = self.current
        stays = bundle is not None and bundle.version == version
        if bundle is None or bundle.stays == stays:
            return self
        if stays:
            reason = "the winner has the same content, so it was not replaced"
        else:
            reason = f"its content was packaged again, as {version}"
        return self.model_copy(update={"current": bundle.model_copy(update={"stays": stays, "reason": reason})})

    def not_packaged(self, problem: str, version: str) -> Judgement:
        """Return the decisions after `problem` has prevented promotion; `version` is the current bundle or ``""``."""
        bundle, promoted = self.current, self.promoted
        stays = bundle is not None and bundle.version == version
        if promoted is None or (bundle is not None and bundle.stays and stays):
            return self
        decisions = tuple(old.became("hold", problem) if old is promoted else old for old in self.decisions)
        if bundle is not None:
            reason = f"{promoted.name} was chosen, but {problem}"
            reason += "" if stays else f"; meanwhile the current bundle changed to {version or 'none'}"
            bundle = bundle.model_copy(update={"stays": stays, "reason": reason})
        return self.model_copy(update={"decisions": decisions, "current": bundle})

    def rows(self, run: RunInfo, workload: str, decided_at: datetime, bundle_version: str | None = None) -> list[Row]:
        """Return rows of the ``promotions`` table; only the promoted candidate's row has a `bundle_version`."""
        current: Row = {}
        if self.current is not None:
            current = {f"current_{name}": value for name, value in self.current.model_dump().items()}
        shared = {**run.model_dump(exclude={"profile"}), "workload": workload, "decided_at": decided_at, **current}
        rows: list[Row] = []
        for decision in self.decisions:
            rules = canonical_json([rule.model_dump(mode="json") for rule in decision.rules])
            version = bundle_version if decision.decision == "promote" else None
            own = decision.model_dump(exclude={"rules"}) | {"rules": rules, "bundle_version": version}
            rows.append({**shared, **own})
        return rows


def judge(
    workload: Workload,
    rows: Iterable[Row],
    current: CurrentBundle | UnknownBundle | None,
    *,
    withdrawn: Collection[CandidateName] = (),
) -> Judgement:
    """Return the decisions about the current bundle and the candidates (rows of ``measurements``).

    The gate rejects a candidate that failed or breaks a rule, and holds a candidate if a rule is undecided. Among the
    passing candidates that can be deployed, the gate promotes the best by ``objective``. A candidate replaces a good
    current bundle only if it is clearly better, or passes a rule that is undecided for the bundle. If the current
    bundle could not be looked up or measured, the gate holds all passing candidates. The baseline is left out unless it
    is a float candidate that could be deployed and satisfies every rule. `current` is None only if it is certain that
    no bundle is current. Candidates in `withdrawn` have the same content as a withdrawn bundle and are never promoted.
    """
    rows = [row for row in rows if row["workload"] == workload.name]
    # Candidates that this host cannot run were not measured, so the gate does not decide on them.
    measured = [row for row in rows if row["setting"] == "primary" and row["status"] != "skipped"]
    tonight = {CandidateName.parse(candidate_of(row)): row for row in measured}
    decisions = {name: _decide(workload.gate, name, row) for name, row in tonight.items()}
    name = workload.baseline_name
    if name in tonight and not (could_serve(workload, tonight[name]) and decisions[name].decision == "pass"):
        del decisions[name]
    passing = [name for name, item in decisions.items() if item.decision == "pass" and hands_over(name.runtime)]
    for name in decisions.keys() & set(withdrawn):
        decision = decisions[name]
        if name in passing:
            passing.remove(name)
            decisions[name] = decision.became("pass", _WITHDRAWN)
        elif decision.decision == "hold":  # its speed does not decide, so it is timed in few launches
            decisions[name] = decision.model_copy(update={"reason": f"{decision.reason}; {_WITHDRAWN}"})
    # The name comes last in the sort key, so that equal candidates have the same order every night.
    passing.sort(key=lambda name: (*_rank(workload.gate, tonight[name]), name))
    if current is None:
        if passing:
            _promote(decisions, passing[0], _best_of(workload.gate, passing, decisions))
        return Judgement(decisions=tuple(decisions.values()))
    if isinstance(current, UnknownBundle):
        return _hold_all(decisions, passing, current.version, current.reason)
    current_row = next((row for row in rows if row["setting"] == "current"), None)
    current_row = tonight.get(current.same_as, current_row) if current.same_as else current_row
    if unknown := _unmeasured(current, current_row):
        return _hold_all(decisions, passing, current.version, unknown)
    bundle = _replace(workload.gate, current, current_row, {name: tonight[name] for name in passing}, decisions)
    return Judgement(decisions=tuple(decisions.values()), current=bundle)


def may_be_promoted(workload: Workload, row: Row) -> bool:
    """Return whether the candidate meets all conditions for promotion that do not depend on timing."""
    outcomes = rules_on(workload.gate, row, timed=False)
    return hands_over(str(row["runtime"])) and all(rule.outcome == "passed" for rule in outcomes)


def could_serve(workload: Workload, row: Row) -> bool:
    """Return whether a float candidate could be deployed instead of a quantized candidate; its size does not matter."""
    if text(row, "method") != "none" or not hands_over(str(row["runtime"])):
        return False
    quality = [rule for rule in rules_on(workload.gate, row, timed=False) if rule.name in _NEEDED_OF_FLOATS]
    return all(rule.outcome == "passed" for rule in quality)


def hands_over(runtime: str) -> bool:
    """Return whether a runtime's candidates can be deployed."""
    # Candidates for a runtime that nightquant no longer supports cannot be promoted.
    return runtime in RUNTIMES and RUNTIMES[runtime].hands_over


def _hold_all(decisions: Decisions, passing: Sequence[CandidateName], version: str, unknown: str) -> Judgement:
    for name in passing:
        decisions[name] = decisions[name].became("hold", f"the current bundle is unknown: {unknown}")
    reason = f"it is unknown ({unknown}), so nothing is promoted"
    bundle = BundleDecision(version=version or None, stays=True if version else None, reason=reason)
    return Judgement(decisions=tuple(decisions.values()), current=bundle, unknown=unknown)


def _decide(gate: Gate, name: CandidateName, row: Row) -> GateDecision:
    rules = rules_on(gate, row)
    outcomes = {rule.outcome for rule in rules}
    decision: Decision = "reject" if "failed" in outcomes else "hold" if "held" in outcomes else "pass"
    if decision == "pass":
        why = "another passing candidate is better" if hands_over(name.runtime) else f"{name.runtime} is never deployed"
        reason = f"passes all {len(rules)} rules; {why}"
    else:
        outcome = "failed" if decision == "reject" else "held"
        reason = "; ".join(rule.describe() for rule in rules if rule.outcome == outcome)
    names = {"recipe": name.recipe, "runtime": name.runtime, "artifact_digest": text(row, "artifact_digest")}
    return GateDecision(decision=decision, objective=gate.objective, rules=rules, reason=reason, **names)


def _replace(
    gate: Gate, current: CurrentBundle, current_row: Row | None, passing: dict[CandidateName, Row], decisions: Decisions
) -> BundleDecision:
    """Choose between the current bundle and the passing candidates (best first); record promotions in `decisions`."""
    unfit = _unfit(gate, current, current_row)
    better = {name: why for name, row in passing.items() if (why := _advantage(gate, row, current_row))}
    if unfit and passing:
        best = next(iter(passing))
        reason = f"{unfit}; {best} replaces it"
        why = _best_of(gate, passing, decisions, f"; it replaces the current bundle: {unfit}")
        _promote(decisions, best, why)
    elif unfit:
        reason = f"no candidate passes that could replace it, although {unfit}"
    elif better:
        best, why = next(iter(better.items()))
        reason = f"{best} replaces it: {why}"
        _promote(decisions, best, _best_of(gate, passing, decisions, f"; {why}"))
    else:
        reason = "it passes, and no challenger is decidedly better" if passing else "no challenger passes"
        if current.same_as and current.same_as in passing:
            _promote(decisions, current.same_as, reason)
        for name in passing.keys() - {current.same_as}:
            why = f"the current bundle stays: {_undecided(gate, passing[name])}"
            decisions[name] = decisions[name].became("pass", why)
    replaced = any(decision.decision == "promote" and name != current.same_as for name, decision in decisions.items())
    return BundleDecision(version=current.version, stays=not replaced, reason=reason)


def _unmeasured(current: CurrentBundle, current_row: Row | None) -> str:
    """Return the reason that the current bundle cannot be judged, or ``""`` if it can be judged."""
    if current.outdated or current.fault:
        return ""
    if current_row is None:
        return "it was not measured"
    # A stage may fail even if the bundle is good, for example if the process is killed or the host is busy.
    return "" if current_row["status"] == "ok" else f"{text(current_row, 'stage')}: {text(current_row, 'error')}"


def _unfit(gate: Gate, current: CurrentBundle, current_row: Row | None) -> str:
    if current.outdated:
        return current.outdated
    if current.fault:
        return f"it can no longer be used ({current.fault})"
    failed = (
        [rule.describe() for rule in rules_on(gate, current_row) if rule.outcome == "failed"] if current_row else []
    )
    return f"it no longer passes: {'; '.join(failed)}" if failed else ""


def _advantage(gate: Gate, row: Row, current_row: Row | None) -> str:
    if current_row is None:
        return ""
    if gate.objective == "fastest":
        low, value = (finite(row, deciding(row, f"over_current{end}")) for end in ("_low", ""))
        if low is not None and value is not None and low > gate.margin:
            return f"{value:.3g} times as fast as the current bundle in the same launches, at least {low:.3g} times"
    else:
        size, before = finite(row, "size_bytes"), finite(current_row, "size_bytes")
        if size and before and before / size > gate.margin:
            return f"{before / size:.3g} times as small as the current bundle"
    # Ignore rules about ratios to the baseline, because the measured ratios of equally fast candidates may differ.
    # A missing number does not count against the current bundle.
    for rule in rules_on(gate, current_row):
        if rule.outcome == "held" and rule.name not in _RATIOS and rule.seen is not None:
            return f"passes a rule that is undecided for the current bundle: {rule.describe()}"
    return ""


def _undecided(gate: Gate, row: Row) -> str:
    low, high = (finite(row, deciding(row, f"over_current_{end}")) for end in ("low", "high"))
    if gate.objective == "smallest":
        return f"this candidate is not more than {gate.margin:g} times as small"
    if low is None or high is None:
        return "this candidate was not timed in the same launches"
    return f"this candidate is {low:.3g} to {high:.3g} times as fast, and more than {gate.margin:g} is required"


def _promote(decisions: Decisions, name: CandidateName, reason: str) -> None:
    decisions[name] = decisions[name].model_copy(update={"decision": "promote", "reason": reason})


def _best_of(gate: Gate, passing: Collection[CandidateName], decisions: Decisions, why: str = "") -> str:
    no_gain = "" if pays(decisions.values()) else f"; {DOES_NOT_PAY}"
    return f"{gate.objective} of {plural(len(passing), 'passing candidate')}{why}{no_gain}"


def pays(decisions: Iterable[GateDecision]) -> bool:
    """Return whether int8 pays: whether any quantized candidate may be faster than the fastest float candidate."""
    rules = chain.from_iterable(decision.rules for decision in decisions)
    outcomes = [rule.outcome for rule in rules if rule.name == OVER_BEST_FLOAT]
    return not outcomes or any(outcome != "failed" for outcome in outcomes)


def _rank(gate: Gate, row: Row) -> tuple[float, float]:
    """Return a sort key for the gate's ``objective``; smaller keys are better."""
    speed, size = -(finite(row, deciding(row, "speedup")) or 0.0), finite(row, "size_bytes")
    size = math.inf if size is None else size
    return (size, speed) if gate.objective == "smallest" else (speed, size)
