"""Hand one workload over: judge its candidates, package the winner or renew what stays, and return how that came out.

Nothing here writes results: the caller records the outcome, which is what has happened and not what was intended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from flows.execution.signals import attempt, reason
from storage.bundles import BundleStore
from storage.errors import StoreError
from storage.pointer import Pointer
from storage.recovery import by_run
from storage.results import Row
from tasks.bundle.manifest import Provenance
from tasks.bundle.package import BundleRef, content_of, withdrawn_contents
from tasks.gate import judge
from tasks.judgement import Judgement
from tasks.results import Incumbent, RunInfo, UnknownIncumbent, WorkloadResult


@dataclass(frozen=True)
class Handover:
    """What became of a workload's bundle.

    `judgement` holds the decisions as they came out, None if it is unknown whether the switch took place. `version` is
    current afterwards, "" if none is or if it is unknown. `problem` says why a bundle was not made, judged or renewed.
    """

    judgement: Judgement | None
    version: str = ""
    problem: str = ""


def hand_over(
    result: WorkloadResult,
    rows: Sequence[Row],
    run: RunInfo,
    bundles: BundleStore,
    *,
    package: Callable[[Provenance, str | None], BundleRef],
    renew: Callable[[str, str], None],
) -> Handover:
    """Judge a workload's candidates, package the winner, and renew the signature of a current bundle that stays.

    Parameters
    ----------
    rows
        The workload's measurements of this run.
    package
        Packages a promoted candidate, which replaces the version that it was compared with; None if there was none.
    renew
        Renews the signature of a workload's version, which must still be current.
    """
    name = result.workload.name
    current, pointer = _look_up(result, bundles)
    judgement = judge(result.workload, rows, current, withdrawn=_withdrawn(result, pointer))
    if judgement.promoted is None or judgement.unknown:
        standing, why = judgement.incumbent, judgement.unknown
        problem = f"the current bundle is unknown, so nothing was promoted: {why}" if why else ""
        done = Handover(judgement, (standing.version or "") if standing and standing.stays else "", problem)
    else:
        replacing = current.version if isinstance(current, Incumbent) else None
        made = attempt(f"packaging {name}", lambda: package(_provenance(result, judgement, rows, run), replacing))
        if not isinstance(made, Exception):
            withdrawn = "somebody rolled back from this content meanwhile" if made.outcome == "withdrawn" else ""
            outcome = judgement.not_packaged(withdrawn, made.version) if withdrawn else judgement.packaged(made.version)
            return Handover(outcome, made.version)
        done = _not_packaged(judgement, bundles, name, run, made)
    # A bundle that was not looked at is not signed again.
    if isinstance(current, Incumbent) and done.version == current.version:
        refused = attempt(f"renewing {name}", partial(renew, name, current.version))
        if refused is not None:
            problems = dict.fromkeys(filter(None, (done.problem, reason(refused))))
            return replace(done, problem="; ".join(problems))
    return done


def _not_packaged(
    judgement: Judgement, bundles: BundleStore, workload: str, run: RunInfo, error: Exception
) -> Handover:
    """Return what is current after packaging ended in an error; an object store may have switched, its answer lost."""
    why = f"its bundle could not be made: {reason(error)}"
    try:
        now = bundles.pointer(workload)
    except StoreError as unreadable:
        return Handover(None, problem=f"{why}; whether it is current is unknown: {reason(unreadable)}")
    version = now.version if now else ""
    if now is not None and now.history and now.history[-1].by == by_run(run.run_id):
        return Handover(judgement.packaged(version), version, f"{version} is current, but then: {reason(error)}")
    name = judgement.promoted.candidate if judgement.promoted else "the winner"
    problem = f"{name} was chosen, but {why}{f'; {version} stays current' if version else ''}"
    return Handover(judgement.not_packaged(why, version), version, problem)


def _look_up(
    result: WorkloadResult, bundles: BundleStore
) -> tuple[Incumbent | UnknownIncumbent | None, Pointer | None]:
    """Return what was found out tonight about the current bundle, if that is still the current one."""
    found = result.incumbent
    try:
        pointer = bundles.pointer(result.workload.name)
    except StoreError as error:
        return UnknownIncumbent(reason=reason(error)), None
    before = found.version if isinstance(found, Incumbent) else ""
    if pointer is None:
        gone = UnknownIncumbent(reason=f"{before} was current when it was looked up, and nothing is current now")
        return gone if before else None, None
    if isinstance(found, UnknownIncumbent):
        return found.model_copy(update={"version": pointer.version}), pointer
    if before != pointer.version:
        by = pointer.history[-1].by if pointer.history else "somebody"
        why = f"{by} switched from {before or 'no bundle'} to {pointer.version} while the night ran"
        return UnknownIncumbent(version=pointer.version, reason=why), pointer
    return found, pointer


def _withdrawn(result: WorkloadResult, pointer: Pointer | None) -> set[str]:
    """Return the candidates whose content people rolled back from."""
    if pointer is None or result.job is None:
        return set()
    contents = withdrawn_contents(pointer)
    return {
        f"{each.recipe}/{each.runtime}"
        for each in result.candidates
        if each.built is not None and content_of(result.job, each.built) in contents
    }


def _provenance(result: WorkloadResult, judgement: Judgement, rows: Sequence[Row], run: RunInfo) -> Provenance:
    winner = judgement.promoted
    made = next(each for each in result.candidates if winner and f"{each.recipe}/{each.runtime}" == winner.candidate)
    if winner is None or result.job is None or made.built is None or made.evaluation is None:
        raise RuntimeError(f"{result.workload.name} {made.recipe}/{made.runtime} was promoted but never built")
    return Provenance(
        job=result.job,
        candidate=made.built,
        evaluation=made.evaluation,
        decision=winner,
        measurements=list(rows),
        night=run.night,
        run_id=run.run_id,
    )
