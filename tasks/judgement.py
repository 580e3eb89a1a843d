"""A night's decisions about a workload: one for each candidate, and one for the current bundle.

The gate decides before packaging. The store records `Judgement.packaged` or `Judgement.not_packaged`.
"""

from __future__ import annotations

from datetime import date, datetime

from storage.digest import canonical_json
from storage.results import Decision, Row
from tasks.refs import Frozen
from tasks.workload.gate import Objective, RuleOutcome


class GateDecision(Frozen):
    """The gate's decision about one candidate, rule by rule; ``reason`` is a one-line summary."""

    recipe: str
    runtime: str
    decision: Decision
    objective: Objective
    rules: tuple[RuleOutcome, ...]
    reason: str
    artifact_digest: str | None = None

    @property
    def candidate(self) -> str:
        """``recipe/runtime``."""
        return f"{self.recipe}/{self.runtime}"


class Standing(Frozen):
    """The decision about the current bundle; ``version`` and ``stays`` are None if the version is unknown."""

    version: str | None
    stays: bool | None
    reason: str


class Judgement(Frozen):
    """A workload's decisions; ``unknown`` is the reason that the current bundle could not be judged, or ``""``."""

    decisions: tuple[GateDecision, ...]
    incumbent: Standing | None = None
    unknown: str = ""

    @property
    def promoted(self) -> GateDecision | None:
        """Decision about the candidate that becomes, or already is, the current bundle."""
        return next((decision for decision in self.decisions if decision.decision == "promote"), None)

    def packaged(self, version: str) -> Judgement:
        """Return the decisions after the promoted candidate has been packaged and `version` has become current."""
        standing = self.incumbent
        stays = standing is not None and standing.version == version
        if standing is None or standing.stays == stays:
            return self
        if stays:
            reason = "the winner has the same content, so it was not replaced"
        else:
            reason = f"its content was packaged again, as {version}"
        return self.model_copy(update={"incumbent": standing.model_copy(update={"stays": stays, "reason": reason})})

    def not_packaged(self, problem: str, version: str) -> Judgement:
        """Return the decisions after `problem` has prevented promotion; `version` is the current bundle or ``""``."""
        standing, promoted = self.incumbent, self.promoted
        stays = standing is not None and standing.version == version
        if promoted is None or (standing is not None and standing.stays and stays):
            return self
        decisions = tuple(explained(old, "hold", problem) if old is promoted else old for old in self.decisions)
        if standing is not None:
            reason = f"{promoted.candidate} was chosen, but {problem}"
            reason += "" if stays else f"; meanwhile the current bundle changed to {version or 'none'}"
            standing = standing.model_copy(update={"stays": stays, "reason": reason})
        return self.model_copy(update={"decisions": decisions, "incumbent": standing})

    def rows(
        self, *, workload: str, run_id: str, night: date, decided_at: datetime, bundle_version: str | None = None
    ) -> list[Row]:
        """Return rows of the ``promotions`` table; only the promoted candidate's row has a `bundle_version`."""
        incumbent: Row = {}
        if self.incumbent is not None:
            incumbent = {f"incumbent_{name}": value for name, value in self.incumbent.model_dump().items()}
        return [
            {
                "run_id": run_id,
                "night": night,
                "workload": workload,
                "decided_at": decided_at,
                **decision.model_dump(exclude={"rules"}),
                "rules": canonical_json([rule.model_dump(mode="json") for rule in decision.rules]),
                "bundle_version": bundle_version if decision.decision == "promote" else None,
                **incumbent,
            }
            for decision in self.decisions
        ]


def explained(decision: GateDecision, became: Decision, why: str) -> GateDecision:
    """Return the decision about a candidate that passes every rule but is not promoted."""
    reason = f"passes all {len(decision.rules)} rules; {why}"
    return decision.model_copy(update={"decision": became, "reason": reason})
