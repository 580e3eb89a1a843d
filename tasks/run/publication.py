"""Decide what a workload publishes, and what the outcome of packaging makes of the decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from storage.pointer import Pointer, by_run
from storage.results import Row
from tasks.decide.gate import GateDecision, Judgement, judge
from tasks.publish.manifest import Provenance
from tasks.publish.package import BundleRef, withdrawn_among
from tasks.values.results import CurrentBundle, Failure, RunInfo, UnknownBundle, WorkloadResult
from tasks.workload.recipe import CandidateName


@dataclass(frozen=True)
class Publication:
    """A workload's decisions, and the ``version`` that is current after them.

    The candidates were compared with the version ``replacing``, which is ``""`` once a candidate was packaged.
    """

    judgement: Judgement
    version: str = ""
    problem: str = ""
    replacing: str = ""

    @property
    def renews(self) -> bool:
        """Whether to renew the signature of the current bundle, which this run examined and which stays."""
        return self.version != "" and self.version == self.replacing

    def packaged(self, bundle: BundleRef) -> Publication:
        """Return the decisions after the promoted candidate was packaged."""
        if bundle.outcome == "withdrawn":
            why = "somebody rolled back from this content during the night"
            judgement = self.judgement.not_packaged(why, bundle.version)
        else:
            judgement = self.judgement.packaged(bundle.version)
        return Publication(judgement, bundle.version)

    def not_packaged(self, error: str, pointer: Pointer | None, run: RunInfo) -> Publication:
        """Return the decisions after packaging failed; `pointer` was read afterwards."""
        version = pointer.version if pointer else ""
        if pointer is not None and pointer.history and pointer.history[-1].by == by_run(run.run_id):
            problem = f"{version} is current, but a later step failed: {error}"
            judgement = self.judgement.packaged(version)
        else:
            why, winner = f"its bundle could not be built: {error}", self.judgement.promoted
            name = winner.name if winner else "the winner"
            problem = f"{name} was chosen, but {why}{f'; {version} stays current' if version else ''}"
            judgement = self.judgement.not_packaged(why, version)
        return replace(self, judgement=judgement, version=version, problem=problem)

    def with_problem(self, problem: str) -> Publication:
        """Return the same decisions with one more problem."""
        return replace(self, problem="; ".join(dict.fromkeys(filter(None, (self.problem, problem)))))


def decide(result: WorkloadResult, rows: Sequence[Row], pointer: Pointer | Failure | None) -> Publication:
    """Judge a workload's candidates by their rows; `pointer` is the current bundle's, or the reason it is unknown."""
    known = None if isinstance(pointer, Failure) else pointer
    current = UnknownBundle(reason=pointer.error) if isinstance(pointer, Failure) else _current(result, pointer)
    judgement = judge(result.workload, rows, current, withdrawn=_withdrawn(result, known))
    decision, why = judgement.current, judgement.unknown
    return Publication(
        judgement,
        version=(decision.version or "") if decision and decision.stays else "",
        problem=f"the current bundle is unknown, so nothing was promoted: {why}" if why else "",
        replacing=current.version if isinstance(current, CurrentBundle) else "",
    )


def _current(result: WorkloadResult, pointer: Pointer | None) -> CurrentBundle | UnknownBundle | None:
    """Return tonight's results for the current bundle; it is unknown if somebody has switched bundles since."""
    examined, now = result.current, pointer.version if pointer else ""
    if isinstance(examined, UnknownBundle):
        return examined.model_copy(update={"version": now}) if pointer else None
    before = examined.version if examined else ""
    if before == now:
        return examined
    by = pointer.history[-1].by if pointer and pointer.history else "somebody"
    why = f"{by} switched from {before or 'no bundle'} to {now or 'no bundle'} while the night ran"
    return UnknownBundle(version=now, reason=why)


def _withdrawn(result: WorkloadResult, pointer: Pointer | None) -> tuple[CandidateName, ...]:
    """Return the candidates that have the same content as a withdrawn bundle."""
    if pointer is None or result.job is None:
        return ()
    built = (candidate.built for candidate in result.candidates)
    return withdrawn_among((ref for ref in built if ref is not None), result.job, pointer)


def provenance(result: WorkloadResult, winner: GateDecision, rows: Sequence[Row], run: RunInfo) -> Provenance:
    """Return the data for packaging the promoted candidate."""
    chosen = next(each for each in result.candidates if each.name == winner.name)
    if result.job is None or chosen.built is None or chosen.evaluation is None:
        raise RuntimeError(f"{result.workload.name}: only a measured candidate can be promoted; report this bug")
    return Provenance(
        job=result.job,
        candidate=chosen.built,
        evaluation=chosen.evaluation,
        decision=winner,
        measurements=list(rows),
        night=run.night,
        run_id=run.run_id,
    )
