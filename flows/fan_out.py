"""Submit the workloads' stages and wait for their outcomes; a stage that failed returns a `Failure`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar, cast

import httpx
from prefect.futures import PrefectFuture

from flows import steps
from flows.execution.context import note, place_benchmarks
from flows.execution.signals import attempt, interruption_behind, reason
from flows.settings import Settings
from flows.steps import Place
from storage.bundles import BundleStore
from storage.errors import StoreError, UnavailableError
from storage.pointer import Pointer
from storage.results import Row
from storage.results.history import Baseline
from tasks.run import plan, publication
from tasks.values.results import BenchmarkResult, Failure, LayerSensitivity, RunInfo, WorkloadResult
from tasks.workload.recipe import CandidateName
from tasks.workload.workload import Workload

R = TypeVar("R")


def submit(workload: Workload, place: Place) -> Callable[[], WorkloadResult]:
    """Submit every stage up to evaluation, and return a function that waits; each stage waits for its own inputs."""
    preparing = steps.prepare.submit(place, workload)
    obtaining = steps.obtain.submit(place, workload, later(preparing))
    futures = {}
    for recipe in workload.recipe:
        for runtime in recipe.runtimes:
            building = steps.build.submit(place, later(obtaining), recipe, runtime)
            evaluating = steps.evaluate.submit(place, later(obtaining), later(building))
            futures[CandidateName(recipe.name, runtime)] = building, evaluating

    def gather() -> WorkloadResult:
        dataset = wait_for(preparing, "prepare")
        job = wait_for(obtaining, "checkpoint")
        candidates = {}
        for key, (building, evaluating) in futures.items():
            built = wait_for(building, "quantize")
            evaluation = wait_for(evaluating, "evaluate")
            candidates[key] = built, evaluation
        result = plan.gathered(workload, dataset, job, candidates)
        checkpoint = result.job and result.job.checkpoint
        for name, output in (("the data", result.dataset), ("the checkpoint's file", checkpoint)):
            if output and output.notes:
                note(f"{workload.name}: {name}: {'; '.join(output.notes)}")
        return result

    return gather


def later(future: PrefectFuture[R]) -> R:
    """Cast a future to the type of its result, because the next task receives the result instead of the future."""
    return cast(R, future)


def choose_baseline(result: WorkloadResult, settings: Settings, place: Place) -> tuple[WorkloadResult, Baseline]:
    """Time the float candidates that can be deployed, and make the fastest the baseline."""
    floats, timed = plan.floats_to_time(result), None
    if len(floats) > 1 and result.job is not None:
        with place_benchmarks(settings):
            future = steps.fastest_float.submit(place, result.job, floats, settings.profile)
        timed = wait_for(future, "benchmark")
    return plan.with_baseline(result, floats, timed)


def compare(result: WorkloadResult, place: Place, simultaneous: Mapping[CandidateName, int]) -> WorkloadResult:
    """Evaluate a workload's current bundle, and compare the candidates and the bundle with the baseline."""
    if (job := result.job) is not None:
        built = [candidate.built for candidate in result.candidates if candidate.built is not None]
        found = wait_for(steps.find_current.submit(place, job, built), "handoff")
        result = plan.with_current(result, found)
        if bundle := plan.bundle_to_evaluate(result):
            evaluate = steps.evaluate.with_options(task_run_name=f"{result.workload.name} · current bundle: evaluate")
            evaluation = wait_for(evaluate.submit(place, job, bundle), "evaluate")
            result = plan.with_evaluation(result, evaluation)
    planned = plan.comparisons(result, simultaneous)
    if isinstance(planned, Failure):
        return plan.with_comparisons(result, planned)
    baseline, evaluations, counts = planned
    compared = wait_for(steps.compare.submit(place, result.workload, baseline, evaluations, counts), "compare")
    return plan.with_comparisons(result, compared)


def study_layers(result: WorkloadResult, place: Place) -> WorkloadResult:
    """Add the layer sensitivities of the recipes that quantize; note each study that fails."""
    if result.job is None:
        return result
    futures = {each.name: steps.study.submit(place, result.job, each) for each in plan.recipes_to_study(result)}
    sensitivities: list[LayerSensitivity] = []
    for name, future in futures.items():
        layers = wait_for(future, "study")
        if isinstance(layers, Failure):
            note(f"{result.workload.name} · {name}: layers not studied: {layers.error}")
        else:
            sensitivities += layers
    return result.model_copy(update={"sensitivities": tuple(sensitivities)})


def benchmark_all(results: Iterable[WorkloadResult], settings: Settings, place: Place) -> Iterator[WorkloadResult]:
    """Time every workload's candidates; yield each finished workload."""
    submitted = ((result, _submit_timing(result, settings, place)) for result in results)
    # The hosts of a cluster time several workloads at once.
    for result, future in list(submitted) if settings.task_runner == "dask" else submitted:
        if future is not None:
            measured = wait_for(future, "benchmark")
            result = plan.with_benchmark(result, measured)
        yield result


def _submit_timing(result: WorkloadResult, settings: Settings, place: Place) -> PrefectFuture[BenchmarkResult] | None:
    candidates = plan.subjects_to_time(result)
    if not candidates or result.job is None:
        return None
    with place_benchmarks(settings):
        return steps.benchmark.submit(place, result.job, candidates, settings.profile)


def publish(
    result: WorkloadResult, rows: Sequence[Row], run: RunInfo, settings: Settings, store: str
) -> publication.Publication:
    """Package a workload's winner, or renew the signature of the bundle that stays current."""
    name, bundles = result.workload.name, BundleStore(store)
    pointer: Pointer | Failure | None
    try:
        pointer = bundles.pointer(name)
    except StoreError as error:
        pointer = Failure(stage="publish", error=reason(error))
    decided = publication.decide(result, rows, pointer)
    if winner := decided.judgement.promoted:
        provenance, replacing = partial(publication.provenance, result, winner, rows, run), decided.replacing or None
        bundle = attempt(f"packaging {name}", lambda: steps.package(provenance(), store, replacing))
        if isinstance(bundle, Exception):
            decided = decided.not_packaged(reason(bundle), bundles.pointer(name), run)
        else:
            decided = decided.packaged(bundle)
    if decided.renews:
        version = decided.version
        refused = attempt(f"renewing {name}", lambda: settings.signer() and steps.renew(name, store, version))
        if isinstance(refused, Exception):
            decided = decided.with_problem(reason(refused))
    return decided


def wait_for(future: PrefectFuture[R], stage: str) -> R | Failure:
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
