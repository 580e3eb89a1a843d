"""Submit the workloads' stages and gather the results; record each failure in a result instead of raising an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast

import httpx
from prefect.futures import PrefectFuture

from flows import steps
from flows.execution.context import note, place_benchmarks
from flows.execution.signals import interruption_behind
from flows.request import SearchResult
from flows.settings import Settings
from storage.errors import UnavailableError
from tasks.decide.gate import could_serve, may_be_promoted
from tasks.decide.rows import candidate_columns
from tasks.measure.benchmark.stage import BenchmarkCandidate
from tasks.values.job import Job
from tasks.values.refs import CandidateRef, DatasetRef
from tasks.values.results import (
    BenchmarkResult,
    CandidateResult,
    Evaluation,
    Failure,
    Incumbent,
    LayerSensitivity,
    UnknownIncumbent,
    WorkloadResult,
)
from tasks.workload.gate import is_float
from tasks.workload.registry import METHODS
from tasks.workload.workload import Workload

R = TypeVar("R")
Key = tuple[str, str]  # recipe and runtime


@dataclass(frozen=True)
class Submitted:
    """Futures of one workload's stages; the keys of ``built`` and ``evaluated`` are (recipe, runtime) pairs."""

    workload: Workload
    dataset: PrefectFuture[DatasetRef]
    job: PrefectFuture[Job[Workload]]
    built: dict[Key, PrefectFuture[CandidateRef]]
    evaluated: dict[Key, PrefectFuture[Evaluation]]


def submit(workload: Workload, store: str) -> Submitted:
    """Submit every stage up to evaluation without waiting; each stage waits for its own inputs."""
    dataset = steps.prepare.submit(workload, store)
    job = steps.obtain.submit(workload, later(dataset), store)
    built: dict[Key, PrefectFuture[CandidateRef]] = {}
    evaluated: dict[Key, PrefectFuture[Evaluation]] = {}
    for recipe in workload.recipe:
        for runtime in recipe.runtimes:
            key = recipe.name, runtime
            built[key] = steps.build.submit(later(job), recipe, runtime, store)
            evaluated[key] = steps.evaluate.submit(later(job), later(built[key]), store)
    return Submitted(workload, dataset, job, built, evaluated)


def later(future: PrefectFuture[R]) -> R:
    """Cast a future to the type of its result, because the next task receives the result instead of the future."""
    return cast(R, future)


def gather(submitted: Submitted) -> WorkloadResult:
    """Wait for a workload's stages up to evaluation."""
    dataset, job = settle(submitted.dataset, "prepare"), settle(submitted.job, "checkpoint")
    checkpoint = job if isinstance(job, Failure) else job.checkpoint
    for name, output in (("the data", dataset), ("the checkpoint's file", checkpoint)):
        if not isinstance(output, Failure) and output.notes:
            note(f"{submitted.workload.name}: {name}: {'; '.join(output.notes)}")
    failure = next((outcome for outcome in (dataset, job) if isinstance(outcome, Failure)), None)
    return WorkloadResult(
        workload=submitted.workload,
        dataset=None if isinstance(dataset, Failure) else dataset,
        job=None if isinstance(job, Failure) else job,
        candidates=tuple(_candidate(submitted, key, failure) for key in submitted.built),
    )


def with_fastest_float(result: WorkloadResult, settings: Settings, store: str) -> tuple[WorkloadResult, str]:
    """Time the float candidates that can be deployed, and make the fastest the baseline; return the reason too."""
    names = result.workload.floats()
    floats = [
        BenchmarkCandidate(candidate=one.built, outputs=one.evaluation.outputs)
        for one in result.candidates
        if one.built is not None and one.evaluation is not None and one.name in names
    ]
    first = floats[0].candidate.name if floats else result.workload.baseline_name
    reason = "it is the only float candidate that can be deployed"
    if len(floats) > 1 and result.job is not None:
        with place_benchmarks(settings):
            future = steps.fastest_float.submit(result.job, floats, settings.profile, store, settings.fingerprint)
        chosen = settle(future, "benchmark")
        if isinstance(chosen, Failure):
            reason = f"the others could not be timed: {chosen.error}"
        else:
            first, reason = chosen
    workload = result.workload.with_baseline(first)
    job = replace(result.job, workload=workload) if result.job is not None else None
    return result.model_copy(update={"workload": workload, "job": job}), reason


def compare(result: WorkloadResult, store: str, search: SearchResult | None) -> WorkloadResult:
    """Evaluate a workload's current bundle, and compare the candidates and the bundle with the baseline."""
    result, baseline = _with_incumbent(result, store), result.baseline()
    if baseline is None or baseline.evaluation is None:
        why = baseline.failure.error if baseline and baseline.failure else "it was not run"
        failed = Failure(stage="compare", error=f"The baseline {result.workload.baseline_name} failed: {why}")
        return _with_failures(result, lambda name: failed)
    evaluations = [candidate.evaluation for candidate in result.candidates if candidate.evaluation is not None]
    keys = [evaluation.name for evaluation in evaluations]
    simultaneous = search.comparisons() if search else {}
    counts = [simultaneous.get(key, 1) for key in keys]
    current = result.incumbent
    if isinstance(current, Incumbent) and current.evaluation is not None:
        evaluations.append(current.evaluation)
        counts.append(1)
    future = steps.compare.submit(result.workload, baseline.evaluation, evaluations, store, counts)
    comparisons = settle(future, "compare")
    if isinstance(comparisons, Failure):
        return _with_failures(result, lambda name: comparisons)
    if isinstance(current, Incumbent) and current.evaluation is not None:
        current = current.model_copy(update={"comparison": comparisons.pop()})
    by_key = dict(zip(keys, comparisons, strict=True))
    result = result.model_copy(update={"incumbent": current})
    return _update(result, lambda candidate: {"comparison": by_key.get(candidate.name)})


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


def _with_incumbent(result: WorkloadResult, store: str) -> WorkloadResult:
    """Look up the current bundle; evaluate the bundle's files unless the bundle matches one of tonight's candidates."""
    if result.job is None:
        unknown = UnknownIncumbent(reason="it was not looked up, because the workload's data or weights are missing")
        return result.model_copy(update={"incumbent": unknown})
    built = [candidate.built for candidate in result.candidates if candidate.built is not None]
    incumbent: Incumbent | UnknownIncumbent | Failure | None
    incumbent = settle(steps.find_incumbent.submit(result.job, built, store), "handoff")
    baseline = result.baseline()
    if isinstance(incumbent, Failure):
        incumbent = UnknownIncumbent(reason=f"it could not be looked up: {incumbent.error}")
    elif incumbent and incumbent.candidate and not incumbent.same_as and baseline and baseline.evaluation:
        evaluate = steps.evaluate.with_options(task_run_name=f"{result.workload.name} · incumbent: evaluate")
        evaluation = settle(evaluate.submit(result.job, incumbent.candidate, store), "evaluate")
        outcome = {"failure" if isinstance(evaluation, Failure) else "evaluation": evaluation}
        incumbent = incumbent.model_copy(update=outcome)
    return result.model_copy(update={"incumbent": incumbent})


def _update(result: WorkloadResult, change: Callable[[CandidateResult], dict[str, object]]) -> WorkloadResult:
    """Update each candidate with the fields that `change` returns."""
    candidates = tuple(candidate.model_copy(update=change(candidate)) for candidate in result.candidates)
    return result.model_copy(update={"candidates": candidates})


def _with_failures(result: WorkloadResult, failure_of: Callable[[str], Failure | None]) -> WorkloadResult:
    """Pass the names of the candidates and the current bundle to `failure_of`, and record the returned failures."""
    current = result.incumbent
    if isinstance(current, Incumbent) and current.candidate is not None:
        why = current.failure or failure_of(current.candidate.name.key("incumbent"))
        result = result.model_copy(update={"incumbent": current.model_copy(update={"failure": why})})
    return _update(result, lambda one: {"failure": one.failure or failure_of(str(one.name))})


def study_layers(result: WorkloadResult, store: str) -> WorkloadResult:
    """Add the layer sensitivities of the recipes that quantize; note each study that fails."""
    if result.job is None:
        return result
    good = {candidate.recipe for candidate in result.candidates if candidate.failure is None}
    futures = {
        recipe.name: steps.study.submit(result.job, recipe, store)
        for recipe in result.workload.recipe
        if METHODS[recipe.method].quantizes and recipe.name in good
    }
    sensitivities: list[LayerSensitivity] = []
    for name, future in futures.items():
        layers = settle(future, "study")
        if isinstance(layers, Failure):
            note(f"{result.workload.name} · {name}: layers not studied: {layers.error}")
        else:
            sensitivities += layers
    return result.model_copy(update={"sensitivities": tuple(sensitivities)})


def benchmark_all(results: list[WorkloadResult], settings: Settings, store: str) -> Iterator[WorkloadResult]:
    """Time every workload's candidates; yield each finished workload."""
    submitted = ((result, _submit_benchmark(result, settings, store)) for result in results)
    # The hosts of a cluster time several workloads at once.
    for result, future in list(submitted) if settings.task_runner == "dask" else submitted:
        yield result if future is None else _with_benchmark(result, future)


def _submit_benchmark(result: WorkloadResult, settings: Settings, store: str) -> PrefectFuture[BenchmarkResult] | None:
    candidates = [
        subject
        for candidate in result.candidates
        if candidate.failure is None and (subject := _subject(result, candidate)) is not None
    ]
    if not candidates or result.job is None:
        return None
    current = result.incumbent
    if isinstance(current, Incumbent) and current.candidate and current.evaluation and current.failure is None:
        outputs = current.evaluation.outputs
        twin = result.workload.twin(current.candidate.runtime) if current.coverage else None
        candidates.append(
            BenchmarkCandidate(candidate=current.candidate, outputs=outputs, setting="incumbent", twin=twin)
        )
    with place_benchmarks(settings):
        return steps.benchmark.submit(result.job, candidates, settings.profile, store, settings.fingerprint)


def _subject(result: WorkloadResult, candidate: CandidateResult) -> BenchmarkCandidate | None:
    """Describe a candidate for the benchmark; its standing depends on facts that are known before timing."""
    if candidate.built is None or candidate.evaluation is None:
        return None
    gate, current, row = result.workload.gate, result.incumbent, candidate_columns(result, candidate)
    promising = may_be_promoted(result.workload, row)
    standing: Literal["settled", "challenger", "defender"] = "challenger" if promising else "settled"
    if gate.objective != "fastest" and gate.min_speedup is None:
        standing = "settled"
    elif isinstance(current, Incumbent) and current.same_as == candidate.name:
        standing = "defender"
    return BenchmarkCandidate(
        candidate=candidate.built,
        outputs=candidate.evaluation.outputs,
        standing=standing,
        may_be_promoted=promising,
        twin=None if is_float(row) else result.workload.twin(candidate.runtime),
        could_serve=could_serve(result.workload, row),
    )


def _with_benchmark(result: WorkloadResult, future: PrefectFuture[BenchmarkResult]) -> WorkloadResult:
    """Add the benchmark's results, and record a failure for each candidate that the benchmark refused."""
    benchmark = settle(future, "benchmark")
    if isinstance(benchmark, Failure):
        return _with_failures(result, lambda name: benchmark)
    refused = {key: Failure(stage="benchmark", error=error) for key, error in benchmark.refused.items()}
    names = {str(candidate.name) for candidate in result.candidates}
    for key in sorted(refused.keys() - names):
        note(f"{result.workload.name} · {key}: not measured: {refused[key].error}")
    return _with_failures(result.model_copy(update={"benchmark": benchmark}), refused.get)


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
