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

    Raise `InputError` if data is missing, broken or refused, `ConfigurationError` if ``[data]`` asks for the
    impossible, `UnavailableError` if the domain's libraries are missing, `StoreError` if the store cannot be written.
    """
    require_domain(workload)
    return DOMAINS[workload.domain].prepare(workload, workspace)


def obtain(workspace: Workspace, workload: Workload, dataset: DatasetRef) -> Job[Workload]:
    """Train, fetch, draw or look up the workload's float weights, and so complete the job; see `tasks.checkpoint`."""
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
    """Compute a candidate's quality; see `tasks.evaluate`."""
    from tasks.evaluate import evaluate as evaluate_candidate

    # The user's metric may print.
    with reported_as("The candidate cannot be evaluated", hint_for(candidate.runtime)), contained(passed_on=True):
        return evaluate_candidate(job, candidate, workspace)


def compare(workspace: Workspace, baseline: Evaluation, candidates: Sequence[Evaluation]) -> list[Comparison]:
    """Compare candidates with the baseline; see `tasks.evaluate`."""
    from tasks.evaluate import compare_all

    return compare_all(baseline, candidates, workspace)


def find_incumbent(workspace: Workspace, job: Job[Workload], candidates: Sequence[CandidateRef]) -> Incumbent | None:
    """Make the current bundle's files a candidate again; see `tasks.incumbent`."""
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
    """Time candidates against the baseline, alone on this host; see `tasks.benchmark.stage`."""
    from tasks.benchmark.messages import PROFILES
    from tasks.benchmark.stage import benchmark as time_candidates

    return time_candidates(job, candidates, PROFILES[profile], workspace, limit_s=limit_s)
