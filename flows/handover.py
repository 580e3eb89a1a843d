"""Publish one workload: judge its candidates, then package the winner or re-sign the bundle that stays current."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from flows.execution.signals import attempt, reason
from storage.bundles import BundleStore
from storage.errors import StoreError
from storage.pointer import Pointer, by_run
from storage.results import Row
from tasks.decide.gate import Judgement, judge
from tasks.publish.manifest import Provenance
from tasks.publish.package import BundleRef, content_of, withdrawn_contents
from tasks.values.results import Incumbent, RunInfo, UnknownIncumbent, WorkloadResult
from tasks.workload.recipe import CandidateName


@dataclass(frozen=True)
class Handover:
    """Outcome of publishing one workload."""

    judgement: Judgement
    version: str = ""
    problem: str = ""


def hand_over(
    result: WorkloadResult,
    rows: Sequence[Row],
    run: RunInfo,
    bundles: BundleStore,
    *,
    package: Callable[[Provenance, str | None], BundleRef],
    renew: Callable[[str], object],
) -> Handover:
    """Judge a workload's candidates, and package the winner or re-sign the current bundle."""
    name = result.workload.name
    current, pointer = _look_up(result, bundles)
    judgement = judge(result.workload, rows, current, withdrawn=_withdrawn(result, pointer))
    if judgement.promoted is None or judgement.unknown:
        standing, why = judgement.incumbent, judgement.unknown
        problem = f"the current bundle is unknown, so nothing was promoted: {why}" if why else ""
        done = Handover(judgement, (standing.version or "") if standing and standing.stays else "", problem)
    else:
        replacing = current.version if isinstance(current, Incumbent) else None
        bundle = attempt(f"packaging {name}", lambda: package(_provenance(result, judgement, rows, run), replacing))
        if not isinstance(bundle, Exception):
            why = "somebody rolled back from this content during the night" if bundle.outcome == "withdrawn" else ""
            outcome = judgement.not_packaged(why, bundle.version) if why else judgement.packaged(bundle.version)
            return Handover(outcome, bundle.version)
        done = _not_packaged(judgement, bundles, name, run, bundle)
    # Re-sign the current bundle only if this run examined the bundle.
    if isinstance(current, Incumbent) and done.version == current.version:
        refused = attempt(f"renewing {name}", partial(renew, current.version))
        if isinstance(refused, Exception):
            problems = dict.fromkeys(filter(None, (done.problem, reason(refused))))
            return replace(done, problem="; ".join(problems))
    return done


def _not_packaged(
    judgement: Judgement, bundles: BundleStore, workload: str, run: RunInfo, error: Exception
) -> Handover:
    """Return the outcome for a workload whose winner could not be packaged."""
    why = f"its bundle could not be built: {reason(error)}"
    now = bundles.pointer(workload)
    version = now.version if now else ""
    if now is not None and now.history and now.history[-1].by == by_run(run.run_id):
        problem = f"{version} is current, but a later step failed: {reason(error)}"
        return Handover(judgement.packaged(version), version, problem)
    name = judgement.promoted.name if judgement.promoted else "the winner"
    problem = f"{name} was chosen, but {why}{f'; {version} stays current' if version else ''}"
    return Handover(judgement.not_packaged(why, version), version, problem)


def _look_up(
    result: WorkloadResult, bundles: BundleStore
) -> tuple[Incumbent | UnknownIncumbent | None, Pointer | None]:
    """Return tonight's results for the current bundle, and the bundle's pointer."""
    looked_up = result.incumbent
    try:
        pointer = bundles.pointer(result.workload.name)
    except StoreError as error:
        return UnknownIncumbent(reason=reason(error)), None
    before, now = (looked_up.version if looked_up else ""), (pointer.version if pointer else "")
    if isinstance(looked_up, UnknownIncumbent):
        return looked_up.model_copy(update={"version": now}) if pointer else None, pointer
    if before != now:
        by = pointer.history[-1].by if pointer and pointer.history else "somebody"
        why = f"{by} switched from {before or 'no bundle'} to {now or 'no bundle'} while the night ran"
        return UnknownIncumbent(version=now, reason=why), pointer
    return looked_up, pointer


def _withdrawn(result: WorkloadResult, pointer: Pointer | None) -> set[CandidateName]:
    """Return the candidates that have the same content as a withdrawn bundle."""
    if pointer is None or result.job is None:
        return set()
    contents = withdrawn_contents(pointer)
    return {
        candidate.name
        for candidate in result.candidates
        if candidate.built is not None and content_of(result.job, candidate.built) in contents
    }


def _provenance(result: WorkloadResult, judgement: Judgement, rows: Sequence[Row], run: RunInfo) -> Provenance:
    winner = judgement.promoted
    chosen = next(c for c in result.candidates if winner and c.name == winner.name)
    if winner is None or result.job is None or chosen.built is None or chosen.evaluation is None:
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
