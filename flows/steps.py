"""The Prefect tasks of a night: each wraps one function of `tasks.stages`, which runs in a worker process.

Results are small references in memory. ``persist_result=False`` also disables Prefect's cache: artifacts are looked up
in the store by digest, and measurements are never looked up.
"""

from __future__ import annotations

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
from flows.execution.task_runners import require_fingerprint
from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from storage.errors import NightquantError
from storage.report import write_report
from storage.results import Row
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from storage.transient import is_transient
from tasks import stages
from tasks.benchmark.stage import BenchmarkCandidate
from tasks.bundle.manifest import Provenance
from tasks.bundle.package import BundleRef
from tasks.bundle.package import package as package_candidate
from tasks.job import Job, Workspace
from tasks.refs import CandidateRef, DatasetRef
from tasks.results import BenchmarkResult, Comparison, Evaluation, Incumbent, LayerSensitivity, RunInfo
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
_RETRIES = 3


def _should_retry(task: object, run: TaskRun, state: State[object]) -> bool:
    """Decide whether a failed stage is retried, after a pause that ends at once if the run is stopped."""
    failure = state.data
    if isinstance(failure, BaseException) and is_transient(failure):
        return current_execution().pause(_label(run), run.run_count - 1)
    # Prefect logs the error only if no retry is left. The cause of an expected failure may quote a URI with secrets.
    get_run_logger().error("Task run failed: %r", failure, exc_info=not isinstance(failure, NightquantError))
    return False


def _task(name: str, run_name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a function the Prefect task `name`; runs, logs and terminal lines show `run_name`.

    A task is retried after a transient failure of a network or a server. Retrying is safe: artifacts are found by their
    digest, written rows and bundles stay as they are, and a benchmark discards failed attempts. Other errors would
    occur again, and a killed worker might be killed again.

    No task has a tag: Prefect would ask its server for the tag's limit before each run. If the server restarted at that
    moment, the stage would be lost.
    """
    return task(
        name=name,
        task_run_name=run_name,
        persist_result=False,
        retries=_RETRIES,
        # Prefect's own pause cannot be interrupted.
        retry_delay_seconds=0,
        retry_condition_fn=_should_retry,
    )


def _stage(name: str, subject: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a function the Prefect task ``<subject>: <name>``; see `_task`."""
    return _task(name, f"{subject}: {name}")


def _label(run: TaskRun | None = None) -> str:
    """Return the task run's name, with the number of a repeated attempt, as logs and terminal show it."""
    if run is None:
        context = TaskRunContext.get()
        if context is None:
            raise RuntimeError("no Prefect task is running")
        run = context.task_run
    return run.name if run.run_count < 2 else f"{run.name} (attempt {run.run_count})"


def _run(stage: Callable[[Workspace, *Ts], R], store: str, *args: *Ts) -> R:
    execution = current_execution()
    return execution.run(stage, _label(), execution.settings.stage_timeout_s, store, *args)


@_stage("prepare data set", "{workload.name}")
def prepare(workload: Workload, store: str) -> DatasetRef:
    """Tokenize the corpus, or decode and split the images; reuse an artifact with the same digest."""
    return _run(stages.prepare, store, workload)


@_stage("obtain checkpoint", "{workload.name}")
def obtain(workload: Workload, dataset: DatasetRef, store: str) -> Job[Workload]:
    """Find the workload's float weights in the store, or obtain them as ``checkpoint.kind`` says and store them.

    Raises
    ------
    InputError
        The weights are missing, damaged or rejected, or do not fit the workload and its data set.
    ConfigurationError
        The ``[checkpoint]`` section cannot be carried out.
    StoreError
        The store cannot be written.
    """
    return _run(stages.obtain, store, workload, dataset)


@_stage("build", "{job.workload.name} · {recipe.name}/{runtime}")
def build(job: Job[Workload], recipe: Recipe, runtime: str, store: str) -> CandidateRef:
    """Quantize a recipe for a runtime and write its files; reuse an artifact with the same digest."""
    return _run(stages.build, store, job, recipe, runtime)


@_stage("evaluate", "{job.workload.name} · {candidate.name}")
def evaluate(job: Job[Workload], candidate: CandidateRef, store: str) -> Evaluation:
    """Compute one candidate's quality, and store its golden outputs and per-sample results.

    Raises
    ------
    MeasurementError
        The model computes NaN or infinities, or its outputs do not fit the data.
    """
    return _run(stages.evaluate, store, job, candidate)


@_stage("compare with the baseline", "{workload.name}")
def compare(workload: Workload, baseline: Evaluation, candidates: list[Evaluation], store: str) -> list[Comparison]:
    """Compute the difference of quality with its paired 95% interval, and the agreement of predictions.

    Each evaluation's ``samples.safetensors`` has ``quality``, float32 [N], whose mean is the quality, and
    ``prediction``, int64 [N]. The kind of these values determines the interval. With no ``quality`` (one random
    sequence is not a sample) or a single value, there is no interval; without ``prediction``, there is no agreement.

    Raises
    ------
    MeasurementError
        The evaluations used different samples or different metrics.
    """
    return _run(stages.compare, store, baseline, candidates)


@_stage("find incumbent", "{job.workload.name}")
def find_incumbent(job: Job[Workload], candidates: list[CandidateRef], store: str) -> Incumbent | None:
    """Look up the workload's current bundle and make its files a candidate; return None if there is no bundle.

    A bundle with unusable files (damaged, or for a runtime that this version lacks) is returned with the reason as its
    ``fault``. If an error is raised, the bundle is unknown, which differs from faulty and from absent.

    Parameters
    ----------
    candidates
        Tonight's candidates, one of which may be identical to the current bundle.

    Raises
    ------
    StoreError
        The store cannot be read or written, or its pointer to the bundle is damaged.
    UnavailableError
        This host lacks the package of the bundle's runtime.
    BundleError
        The operating system denies reading the bundle.
    """
    return _run(stages.find_incumbent, store, job, candidates)


@_stage("study layers", "{job.workload.name} · {recipe.name}")
def study(job: Job[Workload], recipe: Recipe, store: str) -> tuple[LayerSensitivity, ...]:
    """Rank the quantized layers by the noise that quantizing each one adds."""
    return _run(stages.study, store, job, recipe)


@_stage("benchmark", "{job.workload.name}")
def benchmark(
    job: Job[Workload], candidates: list[BenchmarkCandidate], profile: str, store: str, fingerprint: str = ""
) -> BenchmarkResult:
    """Time baseline and candidates interleaved, in fresh processes, one benchmark at a time on a host.

    The result is never looked up. Hosts with another `fingerprint` are refused ("": any host).
    """
    require_fingerprint(fingerprint)
    execution = current_execution()
    # The benchmark limits itself, because waiting for another benchmark on this host does not count.
    limit_s = execution.settings.stage_timeout_s
    return execution.run(stages.benchmark, _label(), None, store, job, candidates, profile, limit_s)


@_stage("package", "{provenance.job.workload.name} · {provenance.candidate.name}")
def package(provenance: Provenance, store: str, replacing: str | None) -> BundleRef:
    """Write the promoted candidate as a verified bundle, and make it current in place of `replacing`.

    This runs in the flow's process because it does not need torch, and only that process has the signing key.
    """
    execution = current_execution()
    with execution.here(_label()) as progress:
        bundles = BundleStore(store, execution.settings.signer())
        workspace = Workspace(ArtifactStore(store), progress)
        return package_candidate(provenance, workspace, bundles, replacing)


@_stage("renew signature", "{workload}")
def renew(workload: str, store: str, version: str) -> None:
    """Re-sign the version that stays current, in the flow's process, which extends its expiry."""
    execution = current_execution()
    with execution.here(_label()):
        BundleStore(store, execution.settings.signer()).renew(workload, version)


@_task("record", "record {run.run_id}")
def record(run: RunInfo, tables: dict[str, list[Row]], store: str, part: str = "") -> None:
    """Write the night's rows as Parquet, atomically, one file per table and `part`.

    The terminal and the run's log name each value that a row lacks, with the reason.
    """
    ResultsStore(store).record(tables, run.run_id, datetime.now(UTC), note, part=part)


@_task("report", "report {run.night}")
def report(run: RunInfo, store: str, unrecorded: Row | None = None) -> str:
    """Write the night's report into the store as one self-contained HTML file; return its URL.

    `unrecorded` is the run's row of ``runs``, which is recorded last, after every step that may fail.
    """
    root = StoreRoot.of(store)
    name = f"reports/{run.night}.html"
    with TemporaryDirectory(prefix="nightquant-") as folder:
        page = Path(folder) / "report.html"
        write_report(root, run.night, page, unrecorded=unrecorded)
        root.put(name, page)
    return (root.local / name).as_uri() if root.local else root.uri(name)
