"""Submit one workload's stages up to evaluation and gather what became of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

import httpx
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger

from flows import steps
from flows.execution.context import current_execution
from flows.execution.signals import interruption_behind
from flows.execution.task_runners import AnyTaskRunner, place_benchmarks
from flows.settings import Settings
from storage.errors import MeasurementError
from tasks.benchmark.stage import BenchmarkCandidate
from tasks.job import Job
from tasks.record import CandidateResult, Failure, WorkloadResult
from tasks.refs import CandidateRef, DatasetRef
from tasks.results import BenchmarkResult, Comparison, Evaluation, LayerSensitivity
from tasks.workload.workload import Workload

R = TypeVar("R")
Key = tuple[str, str]  # recipe and runtime


@dataclass(frozen=True)
class Submitted:
    """One workload's stages as futures; those of candidates by recipe and runtime."""

    workload: Workload
    store: str
    dataset: PrefectFuture[DatasetRef]
    job: PrefectFuture[Job[Workload]]
    built: dict[Key, PrefectFuture[CandidateRef]]
    evaluated: dict[Key, PrefectFuture[Evaluation]]


def submit(workload: Workload, store: str) -> Submitted:
    """Submit every stage up to evaluation; each waits for the ones it needs, and nothing here waits."""
    dataset = steps.prepare.submit(workload, store)
    job = steps.obtain.submit(workload, later(dataset), store)
    built: dict[Key, PrefectFuture[CandidateRef]] = {}
    evaluated: dict[Key, PrefectFuture[Evaluation]] = {}
    for recipe in workload.recipe:
        for runtime in recipe.runtimes:
            key = recipe.name, runtime
            built[key] = steps.build.submit(later(job), recipe, runtime, store)
            evaluated[key] = steps.evaluate.submit(later(job), later(built[key]), store)
    return Submitted(workload, store, dataset, job, built, evaluated)


def later(future: PrefectFuture[R]) -> R:
    """A future as another task's argument: Prefect puts its result in its place, which its types do not say."""
    return cast(R, future)


def gather(submitted: Submitted) -> WorkloadResult:
    """Wait for a workload's stages and compare its candidates; failures become part of the result, never an error."""
    dataset, job = settle(submitted.dataset, "prepare"), settle(submitted.job, "checkpoint")
    failure = next((outcome for outcome in (dataset, job) if isinstance(outcome, Failure)), None)
    result = WorkloadResult(
        workload=submitted.workload,
        dataset=None if isinstance(dataset, Failure) else dataset,
        job=None if isinstance(job, Failure) else job,
        candidates=tuple(_candidate(submitted, key, failure) for key in submitted.built),
    )
    return _compared(result, submitted.store)


def _candidate(submitted: Submitted, key: Key, failure: Failure | None) -> CandidateResult:
    result = CandidateResult(recipe=key[0], runtime=key[1], failure=failure)
    if failure is not None:
        return result
    built = settle(submitted.built[key], "quantize")
    if isinstance(built, Failure):
        return result.model_copy(update={"failure": built})
    evaluation = settle(submitted.evaluated[key], "evaluate")
    outcome = {"failure": evaluation} if isinstance(evaluation, Failure) else {"evaluation": evaluation}
    return result.model_copy(update={"built": built, **outcome})


def _compared(result: WorkloadResult, store: str) -> WorkloadResult:
    baseline = result.baseline()
    if baseline is None or baseline.evaluation is None:
        why = baseline.failure.error if baseline and baseline.failure else "it was not run"
        return fail_rest(result, "compare", f"The baseline {result.workload.benchmark.baseline} failed: {why}")
    evaluations = [each.evaluation for each in result.candidates if each.evaluation is not None]
    comparisons = settle(steps.compare.submit(result.workload, baseline.evaluation, evaluations, store), "compare")
    if isinstance(comparisons, Failure):
        return fail_rest(result, "compare", comparisons.error)
    found = {(each.recipe, each.runtime): comparison for each, comparison in zip(evaluations, comparisons, strict=True)}
    return with_comparisons(result, found)


def with_comparisons(result: WorkloadResult, comparisons: dict[Key, Comparison]) -> WorkloadResult:
    """Add each candidate's comparison."""
    return result.model_copy(
        update={
            "candidates": tuple(
                each.model_copy(update={"comparison": comparisons.get((each.recipe, each.runtime))})
                for each in result.candidates
            )
        }
    )


def fail_rest(result: WorkloadResult, stage: str, error: str) -> WorkloadResult:
    """Mark every candidate that had not failed yet as failed at `stage`."""
    failure = Failure(stage=stage, error=error)
    return result.model_copy(
        update={
            "candidates": tuple(
                each if each.failure else each.model_copy(update={"failure": failure}) for each in result.candidates
            )
        }
    )


def study_layers(result: WorkloadResult, store: str) -> tuple[WorkloadResult, list[str]]:
    """Add the sensitivity of every quantized recipe's layers; also return what could not be studied, and why.

    A study that fails costs its rows, not the candidate: what it explains was measured all the same.
    """
    job = result.job
    if job is None:
        return result, []
    good = {each.recipe for each in result.candidates if each.failure is None}
    futures = {
        recipe.name: steps.study.submit(job, recipe, store)
        for recipe in result.workload.recipe
        if recipe.method != "none" and recipe.name in good
    }
    found: list[LayerSensitivity] = []
    remarks = []
    for name, future in futures.items():
        layers = settle(future, "study")
        if isinstance(layers, Failure):
            remarks.append(f"{result.workload.name} · {name}: layers not studied: {layers.error}")
        else:
            found += layers
    return result.model_copy(update={"sensitivities": tuple(found)}), remarks


def benchmark_all(
    results: list[WorkloadResult], settings: Settings, store: str, task_runner: AnyTaskRunner
) -> Iterator[WorkloadResult]:
    """Time every workload's candidates, on hosts of the wanted fingerprint only; give each workload that is through.

    A cluster gets all workloads at once and times one on each host; a host of its own times one after the other.
    """
    try:
        placement = place_benchmarks(settings, task_runner)
    except MeasurementError as error:
        yield from (fail_rest(result, "benchmark", str(error)) for result in results)
        return

    def begin(index: int, result: WorkloadResult) -> tuple[WorkloadResult, PrefectFuture[list[BenchmarkResult]] | None]:
        with placement.at(index):
            return result, _begin_benchmark(result, settings, store)

    begun = itertools.starmap(begin, enumerate(results))
    for result, future in list(begun) if placement.ahead else begun:
        yield result if future is None else _with_benchmark(result, future)


def _begin_benchmark(
    result: WorkloadResult, settings: Settings, store: str
) -> PrefectFuture[list[BenchmarkResult]] | None:
    candidates = [
        BenchmarkCandidate(candidate=each.built, outputs=each.evaluation.outputs)
        for each in result.candidates
        if each.failure is None and each.built is not None and each.evaluation is not None
    ]
    if not candidates or result.job is None:
        return None
    return steps.benchmark.submit(result.job, candidates, settings.profile, store, settings.fingerprint)


def _with_benchmark(result: WorkloadResult, future: PrefectFuture[list[BenchmarkResult]]) -> WorkloadResult:
    """Add the benchmark; a candidate that it refused (its output was wrong, say) has failed."""
    attempts = settle(future, "benchmark")
    if isinstance(attempts, Failure):
        return fail_rest(result, attempts.stage, attempts.error)
    refused = attempts[-1].refused
    _tell_further(result, refused)
    return result.model_copy(
        update={
            "benchmarks": tuple(attempts),
            "candidates": tuple(
                each.model_copy(update={"failure": Failure(stage="benchmark", error=refused[key])})
                if each.failure is None and (key := f"{each.recipe}/{each.runtime}") in refused
                else each
                for each in result.candidates
            ),
        }
    )


def _tell_further(result: WorkloadResult, refused: dict[str, str]) -> None:
    """Tell what was not timed in a further setting; the primary one counts all the same."""
    candidates = {f"{each.recipe}/{each.runtime}" for each in result.candidates}
    for key in sorted(refused.keys() - candidates):
        remark = f"{result.workload.name} · {key}: not timed: {refused[key]}"
        get_run_logger().warning("%s", remark)
        current_execution().reporter.noted(remark)


def settle(future: PrefectFuture[R], stage: str) -> R | Failure:
    """Wait for a stage; return its result, or why it failed."""
    try:
        future.wait()
        # Prefect's types do not say that a failed task's result is its exception.
        outcome: R | BaseException = future.result(raise_on_failure=False)
    except (ConcurrencySlotAcquisitionError, httpx.HTTPError) as unheard:
        # Before a task with tags, Prefect asks its server for their limits.
        return Failure(stage=stage, error=f"Prefect's server did not answer: {unheard or type(unheard).__name__}")
    except Exception as lost:  # noqa: BLE001 - a worker that is gone: each task runner has errors of its own for it
        if (interruption := interruption_behind(lost)) is not None:
            raise interruption from None
        return Failure(stage=stage, error=f"The worker was lost: {lost or type(lost).__name__}")
    if not isinstance(outcome, BaseException) and future.state.is_completed():
        return outcome
    # Dask's and Ray's futures make a crashed state of what is raised while they wait.
    if isinstance(outcome, BaseException) and (interruption := interruption_behind(outcome)) is not None:
        raise interruption from None
    text = str(outcome) if isinstance(outcome, BaseException) else (future.state.message or future.state.name)
    return Failure(stage=stage, error=text or type(outcome).__name__)
