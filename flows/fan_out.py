"""Submit the workloads' stages and wait for their outcomes; a stage that failed returns a `Failure`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import httpx
from prefect.futures import PrefectFuture

from flows import steps
from flows.execution.context import note, place_benchmarks
from flows.execution.signals import interruption_behind
from flows.settings import Settings
from storage.errors import UnavailableError
from storage.results.baselines import Baseline
from tasks.run import outcomes, plan
from tasks.values.job import Job
from tasks.values.refs import CandidateRef, DatasetRef
from tasks.values.results import BenchmarkResult, Evaluation, Failure, LayerSensitivity, WorkloadResult
from tasks.workload.workload import Workload

R = TypeVar("R")
Key = tuple[str, str]  # recipe and runtime


@dataclass(frozen=True)
class Submitted:
    """Futures of one workload's stages; ``candidates`` has each candidate's build and evaluation."""

    workload: Workload
    dataset: PrefectFuture[DatasetRef]
    job: PrefectFuture[Job[Workload]]
    candidates: dict[Key, tuple[PrefectFuture[CandidateRef], PrefectFuture[Evaluation]]]


def submit(workload: Workload, store: str) -> Submitted:
    """Submit every stage up to evaluation without waiting; each stage waits for its own inputs."""
    dataset = steps.prepare.submit(workload, store)
    job = steps.obtain.submit(workload, later(dataset), store)
    candidates = {}
    for recipe in workload.recipe:
        for runtime in recipe.runtimes:
            built = steps.build.submit(later(job), recipe, runtime, store)
            candidates[recipe.name, runtime] = built, steps.evaluate.submit(later(job), later(built), store)
    return Submitted(workload, dataset, job, candidates)


def later(future: PrefectFuture[R]) -> R:
    """Cast a future to the type of its result, because the next task receives the result instead of the future."""
    return cast(R, future)


def gather(submitted: Submitted) -> WorkloadResult:
    """Wait for a workload's stages up to evaluation."""
    dataset, job = settle(submitted.dataset, "prepare"), settle(submitted.job, "checkpoint")
    candidates = {}
    for key, (building, evaluating) in submitted.candidates.items():
        built = settle(building, "quantize")
        evaluation = settle(evaluating, "evaluate")
        candidates[key] = built, evaluation
    result = outcomes.gathered(submitted.workload, dataset, job, candidates)
    for remark in outcomes.remarks(result):
        note(remark)
    return result


def choose_baseline(result: WorkloadResult, settings: Settings, store: str) -> tuple[WorkloadResult, Baseline]:
    """Time the float candidates that can be deployed, and make the fastest the baseline."""
    floats, timed = plan.floats_to_time(result), None
    if len(floats) > 1 and result.job is not None:
        with place_benchmarks(settings):
            future = steps.fastest_float.submit(result.job, floats, settings.profile, store, settings.fingerprint)
        timed = settle(future, "benchmark")
    return outcomes.with_baseline(result, floats, timed)


def compare(result: WorkloadResult, store: str, simultaneous: Mapping[Key, int]) -> WorkloadResult:
    """Evaluate a workload's current bundle, and compare the candidates and the bundle with the baseline."""
    if (job := result.job) is not None:
        built = [candidate.built for candidate in result.candidates if candidate.built is not None]
        found = settle(steps.find_incumbent.submit(job, built, store), "handoff")
        result = outcomes.with_current(result, found)
        if bundle := plan.bundle_to_evaluate(result):
            evaluate = steps.evaluate.with_options(task_run_name=f"{result.workload.name} · incumbent: evaluate")
            evaluation = settle(evaluate.submit(job, bundle, store), "evaluate")
            result = outcomes.with_evaluation(result, evaluation)
    planned = plan.comparisons(result, simultaneous)
    if isinstance(planned, Failure):
        return outcomes.with_comparisons(result, planned)
    baseline, evaluations, counts = planned
    compared = settle(steps.compare.submit(result.workload, baseline, evaluations, store, counts), "compare")
    return outcomes.with_comparisons(result, compared)


def study_layers(result: WorkloadResult, store: str) -> WorkloadResult:
    """Add the layer sensitivities of the recipes that quantize; note each study that fails."""
    if result.job is None:
        return result
    recipes = plan.recipes_to_study(result)
    futures = [steps.study.submit(result.job, recipe, store) for recipe in recipes]
    sensitivities: list[LayerSensitivity] = []
    for recipe, future in zip(recipes, futures, strict=True):
        layers = settle(future, "study")
        if isinstance(layers, Failure):
            note(f"{result.workload.name} · {recipe.name}: layers not studied: {layers.error}")
        else:
            sensitivities += layers
    return result.model_copy(update={"sensitivities": tuple(sensitivities)})


def benchmark_all(results: Iterable[WorkloadResult], settings: Settings, store: str) -> Iterator[WorkloadResult]:
    """Time every workload's candidates; yield each finished workload."""
    submitted = ((result, _submit_benchmark(result, settings, store)) for result in results)
    # The hosts of a cluster time several workloads at once.
    for result, future in list(submitted) if settings.task_runner == "dask" else submitted:
        if future is not None:
            measured = settle(future, "benchmark")
            result = outcomes.with_benchmark(result, measured)
            for remark in outcomes.refusals(result):
                note(remark)
        yield result


def _submit_benchmark(result: WorkloadResult, settings: Settings, store: str) -> PrefectFuture[BenchmarkResult] | None:
    candidates = plan.subjects_to_time(result)
    if not candidates or result.job is None:
        return None
    with place_benchmarks(settings):
        return steps.benchmark.submit(result.job, candidates, settings.profile, store, settings.fingerprint)


def settle(future: PrefectFuture[R], stage: str) -> R | Failure:
    """Wait for a stage; return its result or failure."""
    lost = ""
    # Prefect's type annotations do not show that a failed task's result is an exception.
    outcome: R | BaseException
    try:
        future.wait()
        outcome = future.result(raise_on_failure=False)
    except Exception as error:  # noqa: BLE001 - each task runner raises its own errors for a lost worker
        outcome, lost = error, "The worker was lost: "
    if not isinstance(outcome, BaseException):
        state = future.state
        return outcome if state.is_completed() else Failure(stage=stage, error=state.message or state.name)
    # If an exception interrupts the wait for a Dask future, the future returns a crashed state.
    if (interruption := interruption_behind(outcome)) is not None:
        raise interruption from None
    text = str(outcome) or type(outcome).__name__
    if isinstance(outcome, httpx.HTTPError):
        return Failure(stage=stage, error=f"Prefect's server did not answer: {text}", unheard=True)
    return Failure(stage=stage, error=lost + text, skipped=isinstance(outcome, UnavailableError))
