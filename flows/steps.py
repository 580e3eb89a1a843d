"""The chain's Prefect tasks: each a thin wrapper that runs one function of `tasks.stages` in a worker process.

Results are small references held in memory. ``persist_result=False`` also keeps Prefect's cache off: the store knows by
digest what exists, and a measurement must never be looked up.
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


def _is_worth_a_retry(task: object, run: TaskRun, state: State[object]) -> bool:
    """Decide whether a failed stage is tried again, after a pause that ends at once if the run is stopped."""
    failure = state.data
    if isinstance(failure, BaseException) and is_transient(failure):
        return current_execution().pause(_label(run), run.run_count - 1)
    # Prefect logs it only if no retry is left. What caused an expected failure may quote a URI with its secrets.
    get_run_logger().error("Task run failed: %r", failure, exc_info=not isinstance(failure, NightquantError))
    return False


def _task(name: str, run_name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a function the Prefect task `name`; its runs, logs and lines at the terminal read `run_name`.

    It is tried again after a transient failure: a network or a server failed for now. That does no harm. Artifacts are
    found by their digest, rows and bundles that were written are left as they are, and a benchmark keeps nothing of an
    attempt that failed. Other errors would come again, and so might what killed a worker.

    No task has a tag: before a task that has one, Prefect asks its server for the tag's limit, and loses the stage if
    the server restarts just then.
    """
    return task(
        name=name,
        task_run_name=run_name,
        persist_result=False,
        retries=_RETRIES,
        # Prefect's own pause cannot be interrupted.
        retry_delay_seconds=0,
        retry_condition_fn=_is_worth_a_retry,
    )


def _stage(name: str, of: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a function the Prefect task ``<of>: <name>``; see `_task`."""
    return _task(name, f"{of}: {name}")


def _label(run: TaskRun | None = None) -> str:
    """Return the name of the task run, by which logs and terminal call the stage, with the number of its attempt."""
    if run is None:
        context = TaskRunContext.get()
        if context is None:
            raise RuntimeError("this is no task run")
        run = context.task_run
    return run.name if run.run_count < 2 else f"{run.name} (attempt {run.run_count})"


def _run(stage: Callable[[Workspace, *Ts], R], store: str, *args: *Ts) -> R:
    execution = current_execution()
    return execution.run(stage, _label(), execution.settings.stage_timeout_s, store, *args)


@_stage("prepare data set", "{workload.name}")
def prepare(workload: Workload, store: str) -> DatasetRef:
    """Tokenize the corpus, or decode and split the images; found again by digest."""
    return _run(stages.prepare, store, workload)


@_stage("obtain checkpoint", "{workload.name}")
def obtain(workload: Workload, dataset: DatasetRef, store: str) -> Job[Workload]:
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
    return _run(stages.obtain, store, workload, dataset)


@_stage("build", "{job.workload.name} · {recipe.name}/{runtime}")
def build(job: Job[Workload], recipe: Recipe, runtime: str, store: str) -> CandidateRef:
    """Carry a recipe out for a runtime: quantize and write its files; found again by digest."""
    return _run(stages.build, store, job, recipe, runtime)


@_stage("evaluate", "{job.workload.name} · {candidate.name}")
def evaluate(job: Job[Workload], candidate: CandidateRef, store: str) -> Evaluation:
    """Compute one candidate's quality and keep its golden outputs and per-sample results.

    Raises
    ------
    MeasurementError
        The model computes NaN or infinities, or its outputs do not fit the data.
    """
    return _run(stages.evaluate, store, job, candidate)


@_stage("compare with the baseline", "{workload.name}")
def compare(workload: Workload, baseline: Evaluation, candidates: list[Evaluation], store: str) -> list[Comparison]:
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
    return _run(stages.compare, store, baseline, candidates)


@_stage("find incumbent", "{job.workload.name}")
def find_incumbent(job: Job[Workload], candidates: list[CandidateRef], store: str) -> Incumbent | None:
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
    return _run(stages.find_incumbent, store, job, candidates)


@_stage("study layers", "{job.workload.name} · {recipe.name}")
def study(job: Job[Workload], recipe: Recipe, store: str) -> tuple[LayerSensitivity, ...]:
    """Rank the quantized layers by their own noise, and see what keeping the worst ones float gives back."""
    return _run(stages.study, store, job, recipe)


@_stage("benchmark", "{job.workload.name}")
def benchmark(
    job: Job[Workload], candidates: list[BenchmarkCandidate], profile: str, store: str, fingerprint: str = ""
) -> BenchmarkResult:
    """Time baseline and candidates interleaved, in fresh processes, alone on the host; never looked up.

    Refuses hosts of another `fingerprint` ("": any).
    """
    require_fingerprint(fingerprint)
    execution = current_execution()
    # It limits itself: its wait for another benchmark on this host does not count.
    limit_s = execution.settings.stage_timeout_s
    return execution.run(stages.benchmark, _label(), None, store, job, candidates, profile, limit_s)


@_stage("package", "{made.job.workload.name} · {made.candidate.name}")
def package(made: Provenance, store: str, replacing: str | None) -> BundleRef:
    """Write the promoted candidate as a verified bundle, and make it the current one in place of `replacing`.

    Runs in the flow's own process: it needs no torch, and no other process is given the signing key.
    """
    execution = current_execution()
    with execution.here(_label()) as progress:
        bundles = BundleStore(store, execution.settings.signer())
        workspace = Workspace(ArtifactStore(store), progress)
        return package_candidate(made, workspace, bundles, replacing)


@_stage("renew signature", "{workload}")
def renew(workload: str, store: str, version: str) -> None:
    """Sign the version that stays current again, in the flow's own process; its expiry moves on."""
    execution = current_execution()
    with execution.here(_label()):
        BundleStore(store, execution.settings.signer()).renew(workload, version)


@_task("record", "record {run.run_id}")
def record(run: RunInfo, tables: dict[str, list[Row]], store: str, part: str = "") -> None:
    """Write the night's rows as Parquet, one file per table (and `part`); a reader never sees half a file.

    The terminal and the run's log say what a row lacks, and why.
    """
    ResultsStore(store).record(tables, run.run_id, datetime.now(UTC), note, part=part)


@_task("report", "report {run.night}")
def report(run: RunInfo, store: str, unrecorded: Row | None = None) -> str:
    """Write the night's report, one HTML file that needs nothing else, into the store; return its URL.

    `unrecorded` is the run's own row of ``runs``, which is recorded after everything that can still fail.
    """
    root = StoreRoot.of(store)
    name = f"reports/{run.night}.html"
    with TemporaryDirectory(prefix="nightquant-") as folder:
        page = Path(folder) / "report.html"
        write_report(root, run.night, page, unrecorded=unrecorded)
        root.put(name, page)
    return (root.local / name).as_uri() if root.local else root.uri(name)
