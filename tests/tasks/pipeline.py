"""The stages in a test's process, one call each, on a store instead of a workspace."""

from __future__ import annotations

from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from tasks.domains import domain_named
from tasks.quantize.converted import find_or_convert, open_converted
from tasks.quantize.engine import running
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import spec_of
from tasks.run import stages
from tasks.runtimes.base import Opened
from tasks.runtimes.build import model_source, open_candidate
from tasks.values.job import Job, Progress, Workspace, silent
from tasks.values.refs import CandidateRef, CheckpointRef, DatasetRef
from tasks.values.results import Evaluation
from tasks.workload import Workload


def prepare(workload: Workload, store: ArtifactStore, progress: Progress = silent) -> DatasetRef:
    return stages.prepare(Workspace(store, progress), workload)


def obtain(workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress = silent) -> CheckpointRef:
    return stages.obtain(Workspace(store, progress), workload, dataset).checkpoint


def job_of(workload: Workload, store: ArtifactStore) -> Job[Workload]:
    """The workload with its data set and checkpoint, made where they are missing."""
    return stages.obtain(Workspace(store), workload, prepare(workload, store))


def source_of(workload: Workload, store: ArtifactStore) -> ModelSource:
    return model_source(job_of(workload, store), Workspace(store))


def build_model(workload: Workload, dataset: DatasetRef) -> nn.Module:
    return domain_named(workload.domain).build(workload.model, dataset).eval()


def example_inputs(
    workload: Workload, dataset: DatasetRef, store: ArtifactStore, *, batch_size: int | None = None
) -> dict[str, Tensor]:
    size = batch_size or workload.benchmark.batch_size
    return domain_named(workload.domain).example_inputs(workload, dataset, store, size)


def build(job: Job[Workload], recipe: str, runtime: str, store: ArtifactStore) -> CandidateRef:
    return stages.build(Workspace(store), job, job.workload.recipe_named(recipe), runtime)


def opened(candidate: CandidateRef, store: ArtifactStore, threads: int = 1) -> Opened:
    return open_candidate(candidate, Workspace(store), threads)


def evaluate(job: Job[Workload], candidate: CandidateRef, store: ArtifactStore) -> Evaluation:
    return stages.evaluate(Workspace(store), job, candidate)


def converted(job: Job[Workload], recipe: str, store: ArtifactStore) -> nn.Module:
    """The recipe's converted torch module, opened from the store."""
    named = job.workload.recipe_named(recipe)
    spec = spec_of(named)
    folder = find_or_convert(model_source(job, Workspace(store)), spec)
    with running(spec):
        return open_converted(folder)
