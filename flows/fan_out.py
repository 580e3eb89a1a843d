"""Submit one workload's stages up to evaluation and gather what became of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger

from flows import steps
from flows.placement import place_benchmarks
from flows.settings import Settings
from flows.signals import interruption_behind
from flows.site import current_reporter
from storage.errors import MeasurementError
from tasks.benchmark import BenchmarkCandidate
from tasks.record import CandidateResult, Failure, WorkloadResult
from tasks.refs import ArtifactRef, CheckpointRef, Comparison, DatasetRef, Evaluation, LayerSensitivity, QuantizedRef
from tasks.workload.recipe import Runtime
from tasks.workload.workload import Workload


@dataclass(frozen=True)
class Submitted:
    """One workload's stages as futures, keyed by recipe and by candidate."""

    workload: Workload
    store: str
    dataset: PrefectFuture[DatasetRef]
    checkpoint: PrefectFuture[CheckpointRef]
    quantized: dict[str, PrefectFuture[QuantizedRef]]
    evaluated: dict[tuple[str, Runtime], PrefectFuture[Evaluation]]


def submit(workload: Workload, store: str) -> Submitted:
    """Submit every stage up to evaluation; each waits for the ones it needs, and nothing here waits."""
    chain: Any = steps  # Prefect puts results in the place of futures, of which its types know nothing
    dataset = chain.prepare.submit(workload, store)
    checkpoint = chain.obtain.submit(workload, dataset, store)
    quantized: dict[str, PrefectFuture[QuantizedRef]] = {}
    evaluated: dict[tuple[str, Runtime], PrefectFuture[Evaluation]] = {}
    for recipe in workload.recipe:
        quantized[recipe.name] = chain.quantize.submit(workload, recipe, dataset, checkpoint, store)
        for runtime in recipe.runtimes:
            evaluated[recipe.name, runtime] = chain.evaluate.submit(
                workload, quantized[recipe.name], runtime, dataset, store
            )
    return Submitted(workload, store, dataset, checkpoint, quantized, evaluated)


def gather(submitted: Submitted) -> WorkloadResult:
    """Wait for a workload's stages and compare its candidates; failures become part of the result, never an error."""
    workload = submitted.workload
    dataset, failure = settle(submitted.dataset, "prepare")
    checkpoint = None
    if failure is None:
        checkpoint, failure = settle(submitted.checkpoint, "checkpoint")
    candidates = [
        _candidate(submitted, recipe.name, runtime, failure)
        for recipe in workload.recipe
        for runtime in recipe.runtimes
    ]
    result = WorkloadResult(workload=workload, dataset=dataset, checkpoint=checkpoint, candidates=tuple(candidates))
    return _compared(result, submitted.store)


def _candidate(submitted: Submitted, recipe: str, runtime: Runtime, failure: Failure | None) -> CandidateResult:
    quantized, evaluation = None, None
    if failure is None:
        quantized, failure = settle(submitted.quantized[recipe], "quantize")
    if failure is None:
        evaluation, failure = settle(submitted.evaluated[recipe, runtime], "evaluate")
    return CandidateResult(recipe=recipe, runtime=runtime, quantized=quantized, evaluation=evaluation, failure=failure)


def _compared(result: WorkloadResult, store: str) -> WorkloadResult:
    baseline = result.baseline()
    if baseline is None or baseline.evaluation is None:
        why = baseline.failure.error if baseline and baseline.failure else "it was not run"
        return fail_rest(result, "compare", f"The baseline {result.workload.benchmark.baseline} failed: {why}")
    evaluations = [one.evaluation for one in result.candidates if one.evaluation is not None]
    future = steps.compare.submit(result.workload, baseline.evaluation, evaluations, store)
    comparisons, failure = settle(future, "compare")
    if failure is not None:
        return fail_rest(result, "compare", failure.error)
    return with_comparisons(result, dict(zip(((e.recipe, e.runtime) for e in evaluations), comparisons, strict=True)))


def with_comparisons(result: WorkloadResult, comparisons: dict[tuple[str, Runtime], Comparison]) -> WorkloadResult:
    """Add each candidate's comparison."""
    return result.model_copy(
        update={
            "candidates": tuple(
                one.model_copy(update={"comparison": comparisons.get((one.recipe, one.runtime))})
                for one in result.candidates
            )
        }
    )


def fail_rest(result: WorkloadResult, stage: str, error: str) -> WorkloadResult:
    """Mark every candidate that had not failed yet as failed at `stage`."""
    failure = Failure(stage=stage, error=error)
    return result.model_copy(
        update={
            "candidates": tuple(
                one if one.failure else one.model_copy(update={"failure": failure}) for one in result.candidates
            )
        }
    )


def studied(result: WorkloadResult, store: str) -> tuple[WorkloadResult, list[str]]:
    """Add the sensitivity of every quantized recipe's layers; also give what could not be studied, and why.

    A study that fails costs its rows, not the candidate: what it explains was measured all the same.
    """
    workload, dataset, checkpoint = result.workload, result.dataset, result.checkpoint
    good = {one.recipe for one in result.candidates if one.failure is None}
    if dataset is None or checkpoint is None:
        return result, []
    futures = {
        recipe.name: steps.study.submit(workload, recipe, dataset, checkpoint, store)
        for recipe in workload.recipe
        if recipe.method != "none" and recipe.name in good
    }
    found: list[LayerSensitivity] = []
    remarks = []
    for name, future in futures.items():
        layers, failure = settle(future, "study")
        if failure is None:
            found += layers
        else:
            remarks.append(f"{workload.name} · {name}: layers not studied: {failure.error}")
    return result.model_copy(update={"sensitivities": tuple(found)}), remarks


def benchmarked(
    results: list[WorkloadResult], settings: Settings, store: str, task_runner: object
) -> Iterator[WorkloadResult]:
    """Time every workload's candidates, on hosts of the wanted fingerprint only; give each workload that is through.

    A cluster gets all workloads at once and times one on each host; a host of its own times one after the other.
    """
    try:
        placement = place_benchmarks(settings, task_runner)
    except MeasurementError as error:
        yield from (fail_rest(result, "benchmark", str(error)) for result in results)
        return

    def begin(index: int, result: WorkloadResult) -> tuple[WorkloadResult, PrefectFuture[Any] | None]:
        with placement.at(index):
            return result, _begin_benchmark(result, settings, store)

    begun = itertools.starmap(begin, enumerate(results))
    for result, future in list(begun) if placement.ahead else begun:
        yield result if future is None else _with_benchmark(result, future)


def _begin_benchmark(result: WorkloadResult, settings: Settings, store: str) -> PrefectFuture[Any] | None:
    candidates = [
        BenchmarkCandidate(
            recipe=one.recipe,
            runtime=one.runtime,
            artifact=ArtifactRef(kind=one.quantized.kind, digest=one.quantized.digest),
            outputs=one.evaluation.outputs,
        )
        for one in result.candidates
        if one.failure is None and one.quantized is not None and one.evaluation is not None
    ]
    if not candidates or result.dataset is None:
        return None
    return steps.benchmark.submit(
        result.workload, candidates, result.dataset, settings.profile, store, settings.fingerprint
    )


def _with_benchmark(result: WorkloadResult, future: PrefectFuture[Any]) -> WorkloadResult:
    """Add the benchmark; a candidate that it refused (its output was wrong, say) has failed."""
    attempts, failure = settle(future, "benchmark")
    if failure is not None:
        return fail_rest(result, failure.stage, failure.error)
    refused = attempts[-1].refused
    _tell_further(result, refused)
    return result.model_copy(
        update={
            "benchmarks": tuple(attempts),
            "candidates": tuple(
                one.model_copy(update={"failure": Failure(stage="benchmark", error=refused[key])})
                if one.failure is None and (key := f"{one.recipe}/{one.runtime}") in refused
                else one
                for one in result.candidates
            ),
        }
    )


def _tell_further(result: WorkloadResult, refused: dict[str, str]) -> None:
    """Tell what was not timed in a further setting; the primary one counts all the same."""
    candidates = {f"{one.recipe}/{one.runtime}" for one in result.candidates}
    for key in sorted(refused.keys() - candidates):
        remark = f"{result.workload.name} · {key}: not timed: {refused[key]}"
        get_run_logger().warning("%s", remark)
        current_reporter().noted(remark)


def settle(future: PrefectFuture[Any], stage: str) -> tuple[Any, Failure | None]:
    """Wait for a stage; give its result, or None and why it failed."""
    try:
        future.wait()
        outcome = future.result(raise_on_failure=False)
    except (ConcurrencySlotAcquisitionError, httpx.HTTPError) as unheard:
        # Before a task with tags, Prefect asks its server for their limits.
        return None, Failure(stage=stage, error=f"Prefect's server did not answer: {unheard or type(unheard).__name__}")
    except Exception as lost:  # noqa: BLE001 - a worker that is gone: each task runner has errors of its own for it
        if (interruption := interruption_behind(lost)) is not None:
            raise interruption from None
        return None, Failure(stage=stage, error=f"The worker was lost: {lost or type(lost).__name__}")
    state = future.state
    if state.is_completed():
        return outcome, None
    # Dask's and Ray's futures make a crashed state of what is raised while they wait.
    if isinstance(outcome, BaseException) and (interruption := interruption_behind(outcome)) is not None:
        raise interruption from None
    text = str(outcome) if isinstance(outcome, BaseException) else (state.message or state.name)
    return None, Failure(stage=stage, error=text or type(outcome).__name__)
