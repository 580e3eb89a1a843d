"""The Prefect tasks of a run; most tasks run a function from `tasks.run.stages` in a worker process."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeVar, TypeVarTuple

from prefect import Task, task
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger

from flows.execution.context import current_execution, note
from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from storage.errors import MeasurementError, NightquantError, is_transient
from storage.report import write_report
from storage.results import Row
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from tasks.environment.machine import fingerprint as this_fingerprint
from tasks.measure.benchmark.stage import BenchmarkCandidate
from tasks.publish.manifest import Provenance
from tasks.publish.package import BundleRef
from tasks.publish.package import package as package_candidate
from tasks.run import stages
from tasks.search.trial import RankedLayer, Timed
from tasks.values.job import Job, Workspace
from tasks.values.refs import CandidateRef, DatasetRef
from tasks.values.results import BenchmarkResult, Comparison, Evaluation, Incumbent, LayerSensitivity, RunInfo
from tasks.workload.recipe import CandidateName, Recipe
from tasks.workload.workload import Workload

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


def _should_retry(task: object, run: TaskRun, state: State[object]) -> bool:
    """Decide whether to retry a failed stage; wait before a retry unless the run is stopped."""
    failure = state.data
    if isinstance(failure, BaseException) and is_transient(failure):
        return current_execution().pause(_label(run), run.run_count - 1)
    # Prefect logs an error only after the last retry. Omit the traceback of an expected failure, because the failure's
    # cause may quote a URI that contains secrets.
    get_run_logger().error("Task run failed: %r", failure, exc_info=not isinstance(failure, NightquantError))
    return False


def _task(name: str, run_name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Turn a function into the Prefect task `name`; task runs, logs and terminal lines show `run_name`."""
    # A retry is safe, because artifacts are looked up by digest, and rows and bundles never change. Tasks have no tags,
    # because Prefect would ask the server for a tag's limit before each run, and a restart of the server then loses it.
    return task(
        name=name,
        task_run_name=run_name,
        persist_result=False,
        retries=3,
        retry_delay_seconds=0,  # Prefect's own retry delay cannot be interrupted
        retry_condition_fn=_should_retry,
    )


def _stage(name: str, subject: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    return _task(name, f"{subject}: {name}")


def _label(run: TaskRun | None = None) -> str:
    """Return the task run's name for logs and the terminal; after a retry, add the number of the attempt."""
    if run is None:
        context = TaskRunContext.get()
        assert context is not None, "a stage can run only within a Prefect task"
        run = context.task_run
    return run.name if run.run_count < 2 else f"{run.name} (attempt {run.run_count})"


def _run(stage: Callable[[Workspace, *Ts], R], store: str, *args: *Ts, deadline: float = math.inf) -> R:
    """Run a stage in a worker, which is stopped after the stage timeout or at `deadline` (Unix time)."""
    execution = current_execution()
    limit_s = min(execution.settings.stage_timeout_s, _left_s(deadline))
    return execution.run(stage, _label(), limit_s, store, *args)


def _left_s(deadline: float) -> float:
    """Return the number of seconds until `deadline` (Unix time); if it has passed, raise `MeasurementError`."""
    if (left_s := deadline - time.time()) <= 0:
        raise MeasurementError(f"{_label()}: the stage was not started, because the search's budget is spent.")
    return left_s


@_stage("prepare data set", "{workload.name}")
def prepare(workload: Workload, store: str) -> DatasetRef:
    """Tokenize the corpus, or decode and split the images; reuse an existing artifact with the same digest."""
    return _run(stages.prepare, store, workload)


@_stage("obtain checkpoint", "{workload.name}")
def obtain(workload: Workload, dataset: DatasetRef, store: str) -> Job[Workload]:
    """Find the workload's float weights in the store, or obtain and store them according to ``checkpoint.kind``."""
    return _run(stages.obtain, store, workload, dataset)


@_stage("build", "{job.workload.name} · {recipe.name}/{runtime}")
def build(job: Job[Workload], recipe: Recipe, runtime: str, store: str, deadline: float = math.inf) -> CandidateRef:
    """Build a recipe's candidate for a runtime, or reuse an existing artifact with the same digest."""
    return _run(stages.build, store, job, recipe, runtime, deadline=deadline)


@_stage("evaluate", "{job.workload.name} · {candidate.name}")
def evaluate(job: Job[Workload], candidate: CandidateRef, store: str, deadline: float = math.inf) -> Evaluation:
    """Compute one candidate's quality, and store its golden outputs and per-sample results."""
    return _run(stages.evaluate, store, job, candidate, deadline=deadline)


@_stage("compare with the baseline", "{workload.name}")
def compare(
    workload: Workload,
    baseline: Evaluation,
    candidates: list[Evaluation],
    store: str,
    comparisons: list[int] | None = None,
    deadline: float = math.inf,
) -> list[Comparison]:
    """Compare each candidate's results with the baseline's results."""
    return _run(stages.compare, store, baseline, candidates, comparisons, deadline=deadline)


@_stage("find incumbent", "{job.workload.name}")
def find_incumbent(job: Job[Workload], candidates: list[CandidateRef], store: str) -> Incumbent | None:
    """Look up the workload's current bundle; return its files as a candidate, or None if no bundle is current."""
    return _run(stages.find_incumbent, store, job, candidates)


@_stage("study layers", "{job.workload.name} · {recipe.name}")
def study(job: Job[Workload], recipe: Recipe, store: str) -> tuple[LayerSensitivity, ...]:
    """Rank the quantized layers by the noise that quantizing each layer adds."""
    return _run(stages.study, store, job, recipe)


def _time(
    stage: Callable[[Workspace, *Ts], R], fingerprint: str, store: str, *args: *Ts, timeout_s: float | None = None
) -> R:
    """Run a stage that enforces its own time limit, which excludes the time spent waiting for another benchmark."""
    if fingerprint not in ("", own := this_fingerprint()):
        raise MeasurementError(
            f"{_label()}: this host ({platform.node()}) has the fingerprint {own}, not {fingerprint}.",
            hint="Run the workers on matching hosts only, or clear NIGHTQUANT_FINGERPRINT to allow any host.",
        )
    return current_execution().run(stage, _label(), timeout_s, store, *args)


@_stage("benchmark", "{job.workload.name}")
def benchmark(
    job: Job[Workload], candidates: list[BenchmarkCandidate], profile: str, store: str, fingerprint: str = ""
) -> BenchmarkResult:
    """Time the baseline and candidates in interleaved rounds, which run in new processes."""
    limit_s = current_execution().settings.stage_timeout_s
    return _time(stages.benchmark, fingerprint, store, job, candidates, profile, limit_s)


@_stage("find fastest float", "{job.workload.name}")
def fastest_float(
    job: Job[Workload], candidates: list[BenchmarkCandidate], profile: str, store: str, fingerprint: str = ""
) -> tuple[CandidateName, str]:
    """Time the float candidates in two launches; return the fastest, and the reason for the choice."""
    timeout_s = current_execution().settings.stage_timeout_s
    return _time(stages.fastest_float, fingerprint, store, job, candidates, profile, timeout_s=timeout_s)


@_stage("rank layers", "{job.workload.name} · {recipe.name}")
def rank_layers(job: Job[Workload], recipe: Recipe, store: str, deadline: float) -> tuple[RankedLayer, ...]:
    """Order a recipe's quantized layers by the quality lost per unit of time saved, largest first."""
    return _run(stages.rank_layers, store, job, recipe, deadline=deadline)


@_stage("time trials", "{job.workload.name}")
def time_trials(
    job: Job[Workload],
    baseline: BenchmarkCandidate,
    trials: list[BenchmarkCandidate],
    store: str,
    fingerprint: str,
    deadline: float,
) -> Timed:
    """Time a search's trials and the baseline in two launches."""
    limit_s = current_execution().settings.stage_timeout_s
    left_s = _left_s(deadline)
    return _time(stages.time_trials, fingerprint, store, job, baseline, trials, limit_s, timeout_s=left_s)


@_stage("package", "{provenance.job.workload.name} · {provenance.candidate.name}")
def package(provenance: Provenance, store: str, replacing: str | None) -> BundleRef:
    """Write the promoted candidate as a verified bundle, and make this bundle current."""
    execution = current_execution()
    with execution.here(_label()) as progress:
        bundles = BundleStore(store, execution.settings.signer())
        workspace = Workspace(ArtifactStore(store), progress)
        return package_candidate(provenance, workspace, bundles, replacing)


@_stage("renew signature", "{workload}")
def renew(workload: str, store: str, version: str) -> None:
    """Renew the signature of the version that stays current; the task runs in the flow's process."""
    execution = current_execution()
    with execution.here(_label()):
        BundleStore(store, execution.settings.signer()).renew(workload, version)


@_task("record", "record {run.run_id}")
def record(run: RunInfo, tables: dict[str, list[Row]], store: str, part: str = "") -> None:
    """Write the run's rows atomically as Parquet files, one file per table and `part`."""
    ResultsStore(store).record(tables, run.run_id, datetime.now(UTC), note, part=part)


@_task("report", "report {run.night}")
def report(run: RunInfo, store: str, unrecorded: Row | None = None) -> str:
    """Write the night's report into the store as one self-contained HTML file; return its URL."""
    root = StoreRoot.of(store)
    name = f"reports/{run.night}.html"
    with TemporaryDirectory(prefix="nightquant-") as folder:
        page = Path(folder) / "report.html"
        write_report(root, run.night, page, unrecorded=unrecorded)
        root.put(name, page)
    return (root.local / name).as_uri() if root.local else root.uri(name)
