"""Publish one workload: package its winner, or renew the signature of the bundle that stays current."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flows.execution.signals import attempt, reason
from storage.bundles import BundleStore
from storage.errors import StoreError
from storage.pointer import Pointer
from storage.results import Row
from tasks.publish.manifest import Provenance
from tasks.publish.package import BundleRef
from tasks.run.publication import Publication, decide, provenance
from tasks.values.results import Failure, RunInfo, WorkloadResult


def publish(
    result: WorkloadResult,
    rows: Sequence[Row],
    run: RunInfo,
    bundles: BundleStore,
    *,
    package: Callable[[Provenance, str | None], BundleRef],
    renew: Callable[[str], object],
) -> Publication:
    """Judge a workload's candidates, and carry out the decision with `package` or `renew`."""
    name = result.workload.name
    pointer: Pointer | Failure | None
    try:
        pointer = bundles.pointer(name)
    except StoreError as error:
        pointer = Failure(stage="publish", error=reason(error))
    publication = decide(result, rows, pointer)
    if winner := publication.judgement.promoted:
        replacing = publication.replacing or None
        bundle = attempt(f"packaging {name}", lambda: package(provenance(result, winner, rows, run), replacing))
        if isinstance(bundle, Exception):
            publication = publication.not_packaged(reason(bundle), bundles.pointer(name), run)
        else:
            publication = publication.packaged(bundle)
    if publication.renews:
        refused = attempt(f"renewing {name}", lambda: renew(publication.version))
        if isinstance(refused, Exception):
            publication = publication.with_problem(reason(refused))
    return publication
