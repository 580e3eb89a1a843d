"""Hand one workload over: judge its candidates, package the winner or renew what stays, and return how that came out.

Nothing here writes results: the caller records the outcome, which is what has happened and not what was intended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from flows.attempt import attempt, reason
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

    Attributes
    ----------
    judgement
        The decisions as they came out; None if it is unknown whether the switch took place.
    version
        The version that is current afterwards; "" if there is none, or if it is unknown.
    problem
        Why a bundle was not made, not judged or not renewed; "" if all went well.
    """

    judgement: Judgement | None
    version: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Means:
    """What a hand-over changes the store with.

    Attributes
    ----------
    package
        Packages a promoted candidate, which replaces the version that it was compared with; None if there was none.
    renew
        Renews the signature of a workload's version, which must still be current.
    """

    package: Callable[[Provenance, str | None], BundleRef]
    renew: Callable[[str, str], None]


def hand_over(
    result: WorkloadResult, rows: Sequence[Row], run: RunInfo, bundles: BundleStore, means: Means
) -> Handover:
    """Judge a workload's candidates, package the winner, and renew the signature of a current bundle that stays.

    Parameters
    ----------
    rows
        The workload's measurements of this run.
    """
    name = result.workload.name
    current, pointer = _look_up(result, bundles)
    judgement = judge(result.workload, rows, current, withdrawn=_withdrawn(result, pointer))
    if judgement.unknown:
        problem = f"the current bundle is unknown, so nothing was promoted: {judgement.unknown}"
        done, is_signed = Handover(judgement, _staying(judgement), problem), False
    elif judgement.promoted is None:
        done, is_signed = Handover(judgement, _staying(judgement)), False
    else:
        replacing = current.version if isinstance(current, Incumbent) else None
        provenance = partial(_provenance, result, judgement, rows, run)
        made = attempt(f"packaging {name}", lambda: means.package(provenance(), replacing))
        is_signed = not isinstance(made, Exception)
        done = (
            _not_packaged(judgement, bundles, name, run, made)
            if isinstance(made, Exception)
            else _packaged(judgement, made)
        )
    # What was not looked at is not vouched for again.
    if not is_signed and isinstance(current, Incumbent) and done.version == current.version:
        refused = attempt(f"renewing {name}", partial(means.renew, name, current.version))
        if refused is not None:
            problems = dict.fromkeys(filter(None, (done.problem, reason(refused))))
            return replace(done, problem="; ".join(problems))
    return done


def _packaged(judgement: Judgement, bundle: BundleRef) -> Handover:
    if bundle.outcome == "withdrawn":
        why = "somebody rolled back from this content meanwhile"
        return Handover(judgement.not_packaged(why, bundle.version), bundle.version)
    return Handover(judgement.packaged(bundle.version), bundle.version)


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


def _staying(judgement: Judgement) -> str:
    standing = judgement.incumbent
    return standing.version or "" if standing is not None and standing.stays else ""


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
