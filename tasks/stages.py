"""The stages of a night as plain functions from references to references; implementations are imported on use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.extensions import DOMAINS
from tasks.job import Job, Workspace
from tasks.libraries import contained, hint_for, reported_as
from tasks.machine import require_domain
from tasks.refs import CandidateRef, DatasetRef
from tasks.results import BenchmarkResult, Comparison, Evaluation, Incumbent, LayerSensitivity, Preview, Proposal
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

if TYPE_CHECKING:
    from tasks.benchmark.stage import BenchmarkCandidate


def preview(workspace: Workspace, workload: Workload) -> Preview:
    """Try out a workload without training; see `tasks.preview`."""
    from tasks.preview import preview as try_out

    return try_out(workload, workspace)


def propose(workspace: Workspace, workload: Workload) -> Proposal:
    """Propose keys that follow from data, model and weights; see `tasks.domains.base.Domain.propose`."""
    require_domain(workload)
    return DOMAINS[workload.domain].propose(workload, workspace)


def prepare(workspace: Workspace, workload: Workload) -> DatasetRef:
    """Return the workload's data set, prepared now or found in the store.

    Raises
    ------
    InputError
        The data is missing, broken or refused.
    ConfigurationError
        The ``[data]`` section cannot be carried out.
    UnavailableError
        The domain's libraries are not installed.
    StoreError
        The store cannot be written.
    """
    require_domain(workload)
    return DOMAINS[workload.domain].prepare(workload, workspace)


def obtain(workspace: Workspace, workload: Workload, dataset: DatasetRef) -> Job[Workload]:
    """Return the workload's float weights; if the store lacks them, get them as ``checkpoint.kind`` says.

    Raises
    ------
    InputError
        The weights are missing, broken, refused, or do not fit the workload and its data set.
    ConfigurationError
        The ``[checkpoint]`` section cannot be carried out.
    StoreError
        The store cannot be written.
    """
    from tasks.checkpoint import obtain as obtain_checkpoint

    job = Job(workload, dataset, obtain_checkpoint(workload, dataset, workspace))
    DOMAINS[workload.domain].check(job, workspace)
    return job


def build(workspace: Workspace, job: Job[Workload], recipe: Recipe, runtime: str) -> CandidateRef:
    """Build a candidate of a recipe for a runtime; see `tasks.build`."""
    from tasks.build import build_candidate

    with contained():
        return build_candidate(job, recipe, runtime, workspace)


def evaluate(workspace: Workspace, job: Job[Workload], candidate: CandidateRef) -> Evaluation:
    """Compute one candidate's quality and keep its golden outputs and per-sample results.

    Raises
    ------
    MeasurementError
        The model computes NaN or infinities, or its outputs do not fit the data.
    """
    from tasks.evaluate import evaluate as evaluate_candidate

    # The user's metric may print.
    with reported_as("The candidate cannot be evaluated", hint_for(candidate.runtime)), contained(passed_on=True):
        return evaluate_candidate(job, candidate, workspace)


def compare(workspace: Workspace, baseline: Evaluation, candidates: Sequence[Evaluation]) -> list[Comparison]:
    """Return the difference of quality with its paired 95% interval, and the agreement of the predictions.

    `tasks.evaluate.compare` describes the files of per-sample results, and when there is no interval or agreement.

    Raises
    ------
    MeasurementError
        The two were evaluated on different samples, or by different metrics.
    """
    from tasks.evaluate import compare_all

    return compare_all(baseline, candidates, workspace)


def find_incumbent(workspace: Workspace, job: Job[Workload], candidates: Sequence[CandidateRef]) -> Incumbent | None:
    """Return the workload's current bundle as a candidate; None if there is no bundle.

    If the bundle's own files cannot be used (they are damaged, or this version lacks the runtime), its ``fault`` has
    the reason. An error means that nothing is known about the bundle, not that it is bad or missing.

    Parameters
    ----------
    candidates
        Tonight's candidates, which may include the current bundle.

    Raises
    ------
    StoreError
        The store cannot be read or written, or its pointer to the bundle is damaged.
    UnavailableError
        This machine lacks the package of the bundle's runtime.
    BundleError
        The operating system refuses to read the bundle.
    """
    from tasks.incumbent import find_incumbent as find

    return find(job, candidates, workspace)


def study(workspace: Workspace, job: Job[Workload], recipe: Recipe) -> tuple[LayerSensitivity, ...]:
    """Rank a recipe's layers; see `tasks.sensitivity`."""
    from tasks.sensitivity import study as study_layers

    with reported_as("The layers cannot be studied"), contained(passed_on=True):
        return study_layers(job, recipe, workspace)


def benchmark(
    workspace: Workspace,
    job: Job[Workload],
    candidates: Sequence[BenchmarkCandidate],
    profile: str,
    limit_s: float | None = None,
) -> BenchmarkResult:
    """Time all candidates of a workload against its baseline, alone on the host; results are never reused.

    Parameters
    ----------
    limit_s
        Maximum number of seconds, not counting the wait for the host.

    Raises
    ------
    MeasurementError
        The baseline is missing or wrong, a launch died, or `limit_s` was reached while the primary setting was timed.
        Failures in further settings are reported in ``refused``; failures of memory or proof in ``unknown``.
    """
    from tasks.benchmark.messages import PROFILES
    from tasks.benchmark.stage import benchmark as time_candidates

    return time_candidates(job, candidates, PROFILES[profile], workspace, limit_s=limit_s)
