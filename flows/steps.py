"""The chain's Prefect tasks: each a thin wrapper that runs one function of `tasks.stages` in a worker process.

Results are small references held in memory: Prefect's own cache and result storage stay off, because the store knows by
digest what exists and a measurement must never be looked up.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Concatenate, ParamSpec, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from flows.observability import ProgressArtifact
from flows.placement import require_fingerprint
from flows.site import current_site
from storage.artifacts import ArtifactStore
from storage.report import write_report
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from tasks import stages
from tasks.benchmark.stage import BenchmarkCandidate
from tasks.bundle.manifest import Provenance
from tasks.bundle.package import BundleRef
from tasks.bundle.package import package as package_candidate
from tasks.job import Job, Workspace
from tasks.record import Row, RunInfo
from tasks.refs import CandidateRef, DatasetRef
from tasks.results import BenchmarkResult, Comparison, Evaluation, LayerSensitivity
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

P = ParamSpec("P")
R = TypeVar("R")


def _network_failed(task: object, run: object, state: Any) -> bool:  # a State; Prefect leaves its type open
    # A wrong input stays wrong; only what the network or the disk did is worth another try.
    return isinstance(state.result(raise_on_failure=False), OSError)


def _run(stage: Callable[Concatenate[Workspace, P], R], label: str, store: str, *args: P.args, **kwargs: P.kwargs) -> R:
    site = current_site()
    logger = get_run_logger()
    logger.info("%s: started on %s, process %d", label, platform.node(), os.getpid())
    progress = ProgressArtifact(label)
    result = site.run(stage, label, progress.progressed, site.timeout_s, store, *args, **kwargs)
    progress.finished()
    logger.info("%s: done", label)
    return result


@task(
    name="prepare data set",
    task_run_name="{workload.name}: prepare data set",
    description="Tokenize the corpus, or decode and split the images; found again by digest.",
    tags={"data"},
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[5, 30],
    retry_condition_fn=_network_failed,
)
def prepare(workload: Workload, store: str) -> DatasetRef:
    """Prefect task over `tasks.stages.prepare`."""
    return _run(stages.prepare, f"{workload.name}: prepare data set", store, workload)


@task(
    name="obtain checkpoint",
    task_run_name="{workload.name}: obtain checkpoint",
    description="Fetch the float weights, or train them on first use; found again by digest.",
    tags={"checkpoint"},
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[5, 30],
    retry_condition_fn=_network_failed,
)
def obtain(workload: Workload, dataset: DatasetRef, store: str) -> Job[Workload]:
    """Prefect task over `tasks.stages.obtain`."""
    return _run(stages.obtain, f"{workload.name}: obtain checkpoint", store, workload, dataset)


@task(
    name="build",
    task_run_name="{job.workload.name} · {recipe.name}/{runtime}: build",
    description="Carry a recipe out for a runtime: quantize and write its files; found again by digest.",
    tags={"build"},
    cache_policy=NO_CACHE,
    persist_result=False,
)
def build(job: Job[Workload], recipe: Recipe, runtime: str, store: str) -> CandidateRef:
    """Prefect task over `tasks.stages.build`."""
    label = f"{job.workload.name} · {recipe.name}/{runtime}: build"
    return _run(stages.build, label, store, job, recipe, runtime)


@task(
    name="evaluate",
    task_run_name="{job.workload.name} · {candidate.name}: evaluate",
    description="Compute the candidate's quality on the test split; always anew.",
    tags={"evaluate"},
    cache_policy=NO_CACHE,
    persist_result=False,
)
def evaluate(job: Job[Workload], candidate: CandidateRef, store: str) -> Evaluation:
    """Prefect task over `tasks.stages.evaluate`."""
    return _run(stages.evaluate, f"{job.workload.name} · {candidate.name}: evaluate", store, job, candidate)


@task(
    name="compare",
    task_run_name="{workload.name}: compare with the baseline",
    description="Paired differences in quality between each candidate and the baseline, on the same samples.",
    tags={"evaluate"},
    cache_policy=NO_CACHE,
    persist_result=False,
)
def compare(workload: Workload, baseline: Evaluation, candidates: list[Evaluation], store: str) -> list[Comparison]:
    """Prefect task over `tasks.stages.compare`."""
    return _run(stages.compare, f"{workload.name}: compare with the baseline", store, baseline, candidates)


@task(
    name="study layers",
    task_run_name="{job.workload.name} · {recipe.name}: study layers",
    description="Rank the quantized layers by their own noise, and see what keeping the worst ones float gives back.",
    tags={"evaluate"},
    cache_policy=NO_CACHE,
    persist_result=False,
)
def study(job: Job[Workload], recipe: Recipe, store: str) -> tuple[LayerSensitivity, ...]:
    """Prefect task over `tasks.stages.study`."""
    return _run(stages.study, f"{job.workload.name} · {recipe.name}: study layers", store, job, recipe)


@task(
    name="benchmark",
    task_run_name="{job.workload.name}: benchmark",
    description="Time baseline and candidates interleaved, in fresh processes, alone on the host; never looked up.",
    tags={"benchmark"},
    cache_policy=NO_CACHE,
    persist_result=False,
)
def benchmark(
    job: Job[Workload], candidates: list[BenchmarkCandidate], profile: str, store: str, fingerprint: str = ""
) -> list[BenchmarkResult]:
    """Prefect task over `tasks.stages.benchmark`; refuses hosts of another `fingerprint` ("": any)."""
    require_fingerprint(fingerprint)
    site = current_site()
    # It limits itself: else its wait for another benchmark on this host would count.
    label, progress = f"{job.workload.name}: benchmark", ProgressArtifact(f"{job.workload.name}: benchmark")
    result = site.run(
        stages.benchmark, label, progress.progressed, None, store, job, candidates, profile, site.timeout_s
    )
    progress.finished()
    return result


@task(
    name="record",
    task_run_name="record {run.run_id}",
    description="Write the night's rows as Parquet, one file per table; a reader never sees half a file.",
    tags={"record"},
    cache_policy=NO_CACHE,
    persist_result=False,
)
def record(run: RunInfo, tables: dict[str, list[Row]], store: str) -> None:
    """Append each table's rows to the results; a table without rows is left alone."""
    results = ResultsStore(store)
    for table, rows in tables.items():
        if rows:
            results.append(table, rows, run.run_id, datetime.now(UTC))


@task(
    name="report",
    task_run_name="report {run.night}",
    description="Write the night's report, one HTML file that needs nothing else, into the store.",
    tags={"record"},
    cache_policy=NO_CACHE,
    persist_result=False,
)
def report(run: RunInfo, store: str) -> str:
    """Write ``reports/<night>.html``; give its URL."""
    root = StoreRoot.of(store)
    name = f"reports/{run.night}.html"
    with TemporaryDirectory(prefix="nightquant-") as folder:
        page = Path(folder) / "report.html"
        write_report(root, run.night, page)
        root.put(name, page)
    return (root.local / name).as_uri() if root.local else root.uri(name)


@task(
    name="package",
    task_run_name="{made.job.workload.name} · {made.candidate.name}: package",
    description="Write the promoted candidate as a verified bundle and make it the current one.",
    tags={"handoff"},
    cache_policy=NO_CACHE,
    persist_result=False,
)
def package(made: Provenance, store: str) -> BundleRef:
    """Package in the flow's own process: it needs no torch, and the signing key reaches nobody else."""
    return package_candidate(made, Workspace(ArtifactStore(store)))
