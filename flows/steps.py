"""The chain's Prefect tasks: each a thin wrapper that runs one stage function of `tasks` in a worker process.

Results are small references held in memory: Prefect's own cache and result storage stay off, because the store knows by
digest what exists and a measurement must never be looked up.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from flows.observability import ProgressArtifact
from flows.placement import require_fingerprint
from flows.site import current_site
from storage.report import write_report
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from tasks.benchmark import BenchmarkCandidate
from tasks.bundle import BundleRef
from tasks.gate import GateDecision
from tasks.record import Row, RunInfo, WorkloadResult
from tasks.refs import (
    BenchmarkResult,
    CheckpointRef,
    Comparison,
    DatasetRef,
    Evaluation,
    LayerSensitivity,
    QuantizedRef,
)
from tasks.workload.recipe import Recipe, Runtime
from tasks.workload.workload import Workload


def _network_failed(task: Any, run: Any, state: Any) -> bool:
    # A wrong input stays wrong; only what the network or the disk did is worth another try.
    return isinstance(state.result(raise_on_failure=False), OSError)


_PLAIN: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
_FROM_OUTSIDE: dict[str, Any] = _PLAIN | {
    "retries": 2,
    "retry_delay_seconds": [5, 30],
    "retry_condition_fn": _network_failed,
}


def _run(stage: str, label: str, **arguments: Any) -> Any:
    logger = get_run_logger()
    logger.info("%s: started on %s, process %d", label, platform.node(), os.getpid())
    progress = ProgressArtifact(label)
    result = current_site().run(stage, label, progress.progressed, **arguments)
    progress.finished()
    logger.info("%s: done", label)
    return result


@task(
    name="prepare data set",
    task_run_name="{workload.name}: prepare data set",
    description="Tokenize the corpus, or decode and split the images; found again by digest.",
    tags={"data"},
    **_FROM_OUTSIDE,
)
def prepare(workload: Workload, store: str) -> DatasetRef:
    """Prefect task over `tasks.prepare.prepare`."""
    result: DatasetRef = _run(
        "tasks.prepare:prepare", f"{workload.name}: prepare data set", workload=workload, store=store
    )
    return result


@task(
    name="obtain checkpoint",
    task_run_name="{workload.name}: obtain checkpoint",
    description="Fetch the float weights, or train them on first use; found again by digest.",
    tags={"checkpoint"},
    **_FROM_OUTSIDE,
)
def obtain(workload: Workload, dataset: DatasetRef, store: str) -> CheckpointRef:
    """Prefect task over `tasks.checkpoint.obtain`."""
    label = f"{workload.name}: obtain checkpoint"
    result: CheckpointRef = _run("tasks.checkpoint:obtain", label, workload=workload, dataset=dataset, store=store)
    return result


@task(
    name="quantize",
    task_run_name="{workload.name} · {recipe.name}: quantize",
    description="Quantize the float model by one recipe and export TorchScript; found again by digest.",
    tags={"quantize"},
    **_PLAIN,
)
def quantize(
    workload: Workload, recipe: Recipe, dataset: DatasetRef, checkpoint: CheckpointRef, store: str
) -> QuantizedRef:
    """Prefect task over `tasks.quantize.quantize`."""
    result: QuantizedRef = _run(
        "tasks.quantize:quantize",
        f"{workload.name} · {recipe.name}: quantize",
        workload=workload,
        recipe=recipe,
        dataset=dataset,
        checkpoint=checkpoint,
        store=store,
    )
    return result


@task(
    name="evaluate",
    task_run_name="{workload.name} · {quantized.recipe}/{runtime}: evaluate",
    description="Compute the candidate's quality on the test split; always anew.",
    tags={"evaluate"},
    **_PLAIN,
)
def evaluate(
    workload: Workload, quantized: QuantizedRef, runtime: Runtime, dataset: DatasetRef, store: str
) -> Evaluation:
    """Prefect task over `tasks.evaluate.evaluate`."""
    result: Evaluation = _run(
        "tasks.evaluate:evaluate",
        f"{workload.name} · {quantized.recipe}/{runtime}: evaluate",
        workload=workload,
        quantized=quantized,
        runtime=runtime,
        dataset=dataset,
        store=store,
    )
    return result


@task(
    name="compare",
    task_run_name="{workload.name}: compare with the baseline",
    description="Paired differences in quality between each candidate and the baseline, on the same samples.",
    tags={"evaluate"},
    **_PLAIN,
)
def compare(workload: Workload, baseline: Evaluation, candidates: list[Evaluation], store: str) -> list[Comparison]:
    """Prefect task over `tasks.evaluate.compare_all`."""
    label = f"{workload.name}: compare with the baseline"
    result: list[Comparison] = _run(
        "tasks.evaluate:compare_all", label, baseline=baseline, candidates=candidates, store=store
    )
    return result


@task(
    name="study layers",
    task_run_name="{workload.name} · {recipe.name}: study layers",
    description="Rank the quantized layers by their own noise, and see what keeping the worst ones float gives back.",
    tags={"evaluate"},
    **_PLAIN,
)
def study(
    workload: Workload, recipe: Recipe, dataset: DatasetRef, checkpoint: CheckpointRef, store: str
) -> tuple[LayerSensitivity, ...]:
    """Prefect task over `tasks.sensitivity.study`."""
    result: tuple[LayerSensitivity, ...] = _run(
        "tasks.sensitivity:study",
        f"{workload.name} · {recipe.name}: study layers",
        workload=workload,
        recipe=recipe,
        dataset=dataset,
        checkpoint=checkpoint,
        store=store,
    )
    return result


@task(
    name="benchmark",
    task_run_name="{workload.name}: benchmark",
    description="Time baseline and candidates interleaved, in fresh processes, alone on the host; never looked up.",
    tags={"benchmark"},
    **_PLAIN,
)
def benchmark(
    workload: Workload,
    candidates: list[BenchmarkCandidate],
    dataset: DatasetRef,
    profile: str,
    store: str,
    fingerprint: str = "",
) -> list[BenchmarkResult]:
    """Prefect task over `tasks.benchmark.benchmark_with_rerun`; refuses hosts of another `fingerprint` ("": any)."""
    require_fingerprint(fingerprint)
    result: list[BenchmarkResult] = _run(
        "tasks.benchmark:benchmark_with_rerun",
        f"{workload.name}: benchmark",
        limits_itself=True,  # else its wait for another benchmark on this host would count
        workload=workload,
        candidates=candidates,
        dataset=dataset,
        profile=profile,
        store=store,
    )
    return result


@task(
    name="record",
    task_run_name="record {run.run_id}",
    description="Write the night's rows as Parquet, one file per table; a reader never sees half a file.",
    tags={"record"},
    **_PLAIN,
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
    **_PLAIN,
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
    task_run_name="{workload.name} · {decision.recipe}/{decision.runtime}: package",
    description="Write the promoted candidate as a verified bundle and make it the current one.",
    tags={"handoff"},
    **_PLAIN,
)
def package(
    workload: Workload, result: WorkloadResult, decision: GateDecision, rows: list[Row], run: RunInfo, store: str
) -> BundleRef:
    """Prefect task over `tasks.bundle.package`."""
    candidate = next(
        one for one in result.candidates if (one.recipe, one.runtime) == (decision.recipe, decision.runtime)
    )
    bundle: BundleRef = _run(
        "tasks.bundle:package",
        f"{workload.name} · {decision.candidate}: package",
        workload=workload,
        quantized=candidate.quantized,
        evaluation=candidate.evaluation,
        decision=decision,
        measurements=rows,
        dataset=result.dataset,
        checkpoint=result.checkpoint,
        night=run.night,
        run_id=run.run_id,
        store=store,
    )
    return bundle
