"""The stages of a night as plain functions: references in, references out; what they do is imported when they run."""

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
    """Try a workload out without training; see `tasks.preview`."""
    from tasks.preview import preview as try_out

    return try_out(workload, workspace)


def propose(workspace: Workspace, workload: Workload) -> Proposal:
    """Choose the keys that data, model and weights decide; see `tasks.domains.base.Domain.propose`."""
    require_domain(workload)
    return DOMAINS[workload.domain].propose(workload, workspace)


def prepare(workspace: Workspace, workload: Workload) -> DatasetRef:
    """Make the workload's data set, or find it in the store.

    Raises
    ------
    InputError
        The data is missing, broken or refused.
    ConfigurationError
        The ``[data]`` section asks for something that cannot be.
    UnavailableError
        The domain's libraries are not installed.
    StoreError
        The store cannot be written.
    """
    require_domain(workload)
    return DOMAINS[workload.domain].prepare(workload, workspace)


def obtain(workspace: Workspace, workload: Workload, dataset: DatasetRef) -> Job[Workload]:
    """Find the workload's float weights in the store; otherwise get them as ``checkpoint.kind`` says, and store them.

    Raises
    ------
    InputError
        The weights are missing, broken, refused, or do not fit the workload and its data set.
    ConfigurationError
        The ``[checkpoint]`` section asks for something impossible.
    StoreError
        The store cannot be written.
    """
    from tasks.checkpoint import obtain as obtain_checkpoint

    job = Job(workload, dataset, obtain_checkpoint(workload, dataset, workspace))
    DOMAINS[workload.domain].check(job, workspace)
    return job


def build(workspace: Workspace, job: Job[Workload], recipe: Recipe, runtime: str) -> CandidateRef:
    """Carry a recipe out for a runtime; see `tasks.build`."""
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
    """Difference of quality with its paired 95% interval, and agreement of the predictions.

    Both read ``samples.safetensors``: ``quality``, float32 [N], each sample's contribution (its mean is the quality),
    and ``prediction``, int64 [N]. What the contributions are decides the interval. Where a file has no ``quality`` (one
    random sequence is no sample of anything), or a single one, there is no interval; where it has no ``prediction``
    there is no agreement.

    Raises
    ------
    MeasurementError
        The two were evaluated on different samples, or by different metrics.
    """
    from tasks.evaluate import compare_all

    return compare_all(baseline, candidates, workspace)


def find_incumbent(workspace: Workspace, job: Job[Workload], candidates: Sequence[CandidateRef]) -> Incumbent | None:
    """Look up the workload's current bundle and make its files a candidate again; None if there is no bundle.

    A bundle whose own files cannot be used (they are damaged, or this version has no such runtime) is returned with the
    reason as its ``fault``. Any error means that the bundle is unknown, which is not the same as bad or none.

    Parameters
    ----------
    candidates
        Tonight's candidates, one of which may be the current bundle itself.

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
    """Time all candidates of a workload against its baseline; always anew, and alone on the host.

    Parameters
    ----------
    limit_s
        Most seconds that it may take from its turn on; waiting for that does not count.

    Raises
    ------
    MeasurementError
        The baseline is missing or wrong, a launch died, or `limit_s` was reached, all while the primary setting was
        timed. What goes wrong in a further setting is reported in ``refused``, with memory or proof in ``unknown``.
    """
    from tasks.benchmark.messages import PROFILES
    from tasks.benchmark.stage import benchmark as time_candidates

    return time_candidates(job, candidates, PROFILES[profile], workspace, limit_s=limit_s)
