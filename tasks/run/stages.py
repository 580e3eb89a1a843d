"""A run's stages that use torch, as plain functions; implementations are imported on first use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from storage.errors import UnavailableError
from tasks.domains import domain_named
from tasks.environment.libraries import contained, reported_as
from tasks.environment.machine import require_domain
from tasks.runtimes.base import runtime_named
from tasks.values.job import Job, Workspace
from tasks.values.refs import CandidateRef, DatasetRef
from tasks.values.results import CandidatePreview, Comparison, Evaluation, LayerSensitivity, Preview, Proposal
from tasks.workload.recipe import RUNTIMES, Recipe
from tasks.workload.workload import Workload

if TYPE_CHECKING:
    from tasks.measure.benchmark.stage import BenchmarkCandidate
    from tasks.search.trial import RankedLayer, Timed


def preview(workspace: Workspace, workload: Workload) -> Preview:
    """Try out a workload's data, model and weights without training the model."""
    from tasks.run.preview import preview as try_out

    return try_out(workload, workspace)


def try_candidate(workspace: Workspace, job: Job[Workload], recipe: Recipe, runtime: str) -> CandidatePreview:
    """Build a candidate as a trial."""
    from tasks.run.preview import try_candidate as try_out

    with contained():
        return try_out(job, recipe, runtime, workspace)


def pace(workspace: Workspace, job: Job[Workload], candidate: CandidateRef) -> float:
    """Return the duration of a candidate's shortest call, in seconds per row."""
    from tasks.run.preview import pace as measure

    with reported_as(f"The candidate cannot be called in {candidate.runtime}"), contained():
        return measure(job, candidate, workspace)


def load_makers(workspace: Workspace) -> None:
    """Import the tools that build candidates for the installed runtimes, except those that compile."""
    with contained():
        for name in RUNTIMES:
            runtime = runtime_named(name)
            with suppress(UnavailableError):  # the host lacks the runtime
                runtime.require_installed(name)
                if not runtime.compiles:
                    runtime.maker()


def propose(workspace: Workspace, workload: Workload) -> Proposal:
    """Propose keys for a workload file from its data, model and weights."""
    require_domain(workload)
    return domain_named(workload.domain).propose(workload, workspace)


def prepare(workspace: Workspace, workload: Workload) -> DatasetRef:
    """Return the workload's data set; prepare the data set if the store lacks it."""
    require_domain(workload)
    return domain_named(workload.domain).prepare(workload, workspace)


def obtain(workspace: Workspace, workload: Workload, dataset: DatasetRef) -> Job[Workload]:
    """Return a job with the workload's float weights."""
    from tasks.domains.checkpoint import obtain as obtain_checkpoint

    job = Job(workload, dataset, obtain_checkpoint(workload, dataset, workspace))
    domain_named(workload.domain).check(job, workspace)
    return job


def build(workspace: Workspace, job: Job[Workload], recipe: Recipe, runtime: str) -> CandidateRef:
    """Build a recipe's candidate for a runtime."""
    from tasks.runtimes.build import build_candidate

    with contained():
        return build_candidate(job, recipe, runtime, workspace)


def evaluate(workspace: Workspace, job: Job[Workload], candidate: CandidateRef) -> Evaluation:
    """Compute a candidate's quality, or find an earlier evaluation."""
    from tasks.measure.evaluate import find_or_evaluate

    # If the user's metric prints text, redirect the text to standard error.
    with reported_as(f"The candidate cannot be evaluated with {candidate.runtime}"), contained(passed_on=True):
        return find_or_evaluate(job, candidate, workspace)


def compare(
    workspace: Workspace,
    baseline: Evaluation,
    candidates: Sequence[Evaluation],
    comparisons: Sequence[int] | None = None,
) -> list[Comparison]:
    """Return each candidate's quality difference and agreement; see `tasks.measure.evaluate` for `comparisons`."""
    from tasks.measure.evaluate import compare_all

    return compare_all(baseline, candidates, workspace, comparisons)


def study(workspace: Workspace, job: Job[Workload], recipe: Recipe) -> tuple[LayerSensitivity, ...]:
    """Rank a recipe's layers; see `tasks.measure.sensitivity`."""
    from tasks.measure.sensitivity import sensitivity as rank

    with reported_as("The layers cannot be studied"), contained(passed_on=True):
        return rank(job, recipe, workspace)


def rank_layers(workspace: Workspace, job: Job[Workload], recipe: Recipe) -> tuple[RankedLayer, ...]:
    """Return quantized layers in the order in which a search keeps them in float."""
    from tasks.search.speed import float_order

    with reported_as("The layers cannot be ranked"), contained(passed_on=True):
        return float_order(job, recipe, workspace)


def time_trials(
    workspace: Workspace,
    job: Job[Workload],
    baseline: BenchmarkCandidate,
    candidates: Sequence[BenchmarkCandidate],
    limit_s: float | None = None,
) -> Timed:
    """Measure the speed of trials and of the baseline; see `tasks.search.speed`."""
    from tasks.search.speed import time_trials as time_all

    return time_all(job, baseline, candidates, workspace, limit_s=limit_s)
