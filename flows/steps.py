"""The Prefect tasks of a run; most tasks run a plain function in a worker process."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Concatenate, ParamSpec, TypeVar, TypeVarTuple, cast

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
from tasks.measure.benchmark import stage as benchmarks
from tasks.measure.benchmark.messages import PROFILES
from tasks.measure.benchmark.stage import BenchmarkCandidate
from tasks.publish import current
from tasks.publish.manifest import Provenance
from tasks.publish.package import BundleRef
from tasks.publish.package import package as package_candidate
from tasks.run import stages
from tasks.search.trial import Timed
from tasks.values.job import Job, Workspace
from tasks.values.results import BenchmarkResult, Comparison, Evaluation, RunInfo
from tasks.workload.recipe import CandidateName
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


@dataclass(frozen=True)
class Place:
    """The store of a stage, the time (Unix) at which the stage is stopped, and the fingerprint of the host to use."""

    store: str
    deadline: float = math.inf
    fingerprint: str = ""


def _run(stage: Callable[[Workspace, *Ts], R], place: Place, *args: *Ts) -> R:
    """Run a stage in a worker, which is stopped after the stage timeout or at the deadline."""
    execution = current_execution()
    limit_s = min(execution.settings.stage_timeout_s, _left_s(place.deadline))
    return execution.run(stage, _label(), limit_s, place.store, *args)


def _staged(name: str, subject: str, stage: Callable[Concatenate[Workspace, P], R]) -> Task[Concatenate[Place, P], R]:
    """Turn a stage into a Prefect task; in its arguments, a place replaces the workspace."""

    @_stage(name, subject)
    @wraps(stage)  # Prefect reads the names of the arguments
    def run(place: Place, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, _run(cast(Any, stage), place, *args))  # Prefect passes every argument by position

    return run


def _left_s(deadline: float) -> float:
    """Return the number of seconds until `deadline` (Unix time); if it has passed, raise `MeasurementError`."""
    if (left_s := deadline - time.time()) <= 0:
        raise MeasurementError(f"{_label()}: the stage was not started, because the search's budget is spent.")
    return left_s


prepare = _staged("prepare data set", "{workload.name}", stages.prepare)
obtain = _staged("obtain checkpoint", "{workload.name}", stages.obtain)
build = _staged("build", "{job.workload.name} · {recipe.name}/{runtime}", stages.build)
evaluate = _staged("evaluate", "{job.workload.name} · {candidate.name}", stages.evaluate)
find_current = _staged("find current bundle", "{job.workload.name}", current.find_current)
study = _staged("study layers", "{job.workload.name} · {recipe.name}", stages.study)
rank_layers = _staged("rank layers", "{job.workload.name} · {recipe.name}", stages.rank_layers)


@_stage("compare with the baseline", "{workload.name}")
def compare(
    place: Place,
    workload: Workload,
    baseline: Evaluation,
    candidates: list[Evaluation],
    comparisons: list[int] | None = None,
) -> list[Comparison]:
    """Compare each candidate's results with the baseline's results."""
    return _run(stages.compare, place, baseline, candidates, comparisons)


def _time(stage: Callable[[Workspace, *Ts], R], place: Place, *args: *Ts, timeout_s: float | None = None) -> R:
    """Run a stage that enforces its own time limit, which excludes the time spent waiting for another benchmark."""
    if place.fingerprint not in ("", own := this_fingerprint()):
        raise MeasurementError(
            f"{_label()}: this host ({platform.node()}) has the fingerprint {own}, not {place.fingerprint}.",
            hint="Run the workers on matching hosts only, or clear NIGHTQUANT_FINGERPRINT to allow any host.",
        )
    return current_execution().run(stage, _label(), timeout_s, place.store, *args)


@_stage("benchmark", "{job.workload.name}")
def benchmark(place: Place, job: Job[Workload], candidates: list[BenchmarkCandidate], profile: str) -> BenchmarkResult:
    """Time the baseline and candidates in interleaved rounds, which run in new processes."""
    limit_s = current_execution().settings.stage_timeout_s
    return _time(benchmarks.benchmark, place, job, candidates, PROFILES[profile], limit_s)


@_stage("find fastest float", "{job.workload.name}")
def fastest_float(
    place: Place, job: Job[Workload], candidates: list[BenchmarkCandidate], profile: str
) -> tuple[CandidateName, str]:
    """Time the float candidates in one launch; return the fastest, and the reason for the choice."""
    timeout_s = current_execution().settings.stage_timeout_s
    return _time(benchmarks.fastest_float, place, job, candidates, PROFILES[profile], timeout_s=timeout_s)


@_stage("time trials", "{job.workload.name}")
def time_trials(
    place: Place, job: Job[Workload], baseline: BenchmarkCandidate, trials: list[BenchmarkCandidate]
) -> Timed:
    """Time a search's trials and the baseline in two launches."""
    limit_s, left_s = current_execution().settings.stage_timeout_s, _left_s(place.deadline)
    return _time(stages.time_trials, place, job, baseline, trials, limit_s, timeout_s=left_s)


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
