"""What a run asks of a workload's stages, and what each outcome, a result or a `Failure`, makes of its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from storage.results.history import Baseline
from tasks.decide.gate import could_serve, may_be_promoted
from tasks.decide.rows import candidate_columns
from tasks.measure.benchmark.stage import BenchmarkCandidate
from tasks.values.job import Job
from tasks.values.refs import CandidateRef, DatasetRef
from tasks.values.results import (
    BenchmarkResult,
    CandidateResult,
    Comparison,
    CurrentBundle,
    Evaluation,
    Failure,
    UnknownBundle,
    WorkloadResult,
)
from tasks.workload.recipe import CandidateName, Recipe
from tasks.workload.rules import is_float
from tasks.workload.workload import Workload

R = TypeVar("R")


def gathered(
    workload: Workload,
    dataset: DatasetRef | Failure,
    job: Job[Workload] | Failure,
    candidates: Mapping[CandidateName, tuple[CandidateRef | Failure, Evaluation | Failure]],
) -> WorkloadResult:
    """Return a workload's result up to evaluation; a candidate's failure is the first in the order of the stages.

    `candidates` has the outcomes of building and evaluating each candidate.
    """
    results = []
    for name, (built, evaluation) in candidates.items():
        failures = (outcome for outcome in (dataset, job, built, evaluation) if isinstance(outcome, Failure))
        result = CandidateResult(
            recipe=name.recipe, runtime=name.runtime, built=_good(built), evaluation=_good(evaluation)
        )
        results.append(result.model_copy(update={"failure": next(failures, None)}))
    return WorkloadResult(workload=workload, dataset=_good(dataset), job=_good(job), candidates=tuple(results))


def _good(outcome: R | Failure) -> R | None:
    return None if isinstance(outcome, Failure) else outcome


def floats_to_time(result: WorkloadResult) -> list[BenchmarkCandidate]:
    """Return the evaluated float candidates that could be the baseline."""
    return [subject for subject in subjects_to_time(result) if subject.candidate.name in result.workload.floats()]


def with_baseline(
    result: WorkloadResult, floats: Sequence[BenchmarkCandidate], timed: tuple[CandidateName, str] | Failure | None
) -> tuple[WorkloadResult, Baseline]:
    """Make the fastest float candidate the baseline; `timed` is None unless there was a choice."""
    name = floats[0].candidate.name if floats else result.workload.baseline_name
    reason = "it is the only float candidate that can be deployed"
    if isinstance(timed, Failure):
        reason = f"the others could not be timed: {timed.error}"
    elif timed is not None:
        name, reason = timed
    workload = result.workload.with_baseline(name)
    job = replace(result.job, workload=workload) if result.job is not None else None
    return result.model_copy(update={"workload": workload, "job": job}), Baseline(str(name), reason)


def with_current(result: WorkloadResult, found: CurrentBundle | Failure | None) -> WorkloadResult:
    """Add the current bundle; it is unknown, not absent, if the look-up failed."""
    if isinstance(found, Failure):
        unknown = UnknownBundle(reason=f"it could not be looked up: {found.error}")
        return result.model_copy(update={"current": unknown})
    bundle, ref = None, found.candidate if found is not None and not found.same_as else None
    if ref is not None:
        bundle = CandidateResult(recipe=ref.recipe, runtime=ref.runtime, built=ref)
    return result.model_copy(update={"current": found, "bundle": bundle})


def bundle_to_evaluate(result: WorkloadResult) -> CandidateRef | None:
    """Return the current bundle's own files, unless they cannot be compared because the baseline failed."""
    baseline = result.baseline()
    return result.bundle.built if result.bundle and baseline and baseline.evaluation else None


def with_evaluation(result: WorkloadResult, outcome: Evaluation | Failure) -> WorkloadResult:
    """Add the evaluation of the current bundle's own files."""
    assert result.bundle is not None, "there are no files that could have been evaluated"
    changes = {"failure" if isinstance(outcome, Failure) else "evaluation": outcome}
    return result.model_copy(update={"bundle": result.bundle.model_copy(update=changes)})


def comparisons(
    result: WorkloadResult, simultaneous: Mapping[CandidateName, int]
) -> tuple[Evaluation, list[Evaluation], list[int]] | Failure:
    """Return the baseline's evaluation, the evaluations to compare with it, and how many intervals must hold at once.

    `simultaneous` has these numbers for the candidates that a search chose; all other intervals are independent.
    """
    baseline = result.baseline()
    if baseline is None or baseline.evaluation is None:
        why = baseline.failure.error if baseline and baseline.failure else "it was not run"
        return Failure(stage="compare", error=f"The baseline {result.workload.baseline_name} failed: {why}")
    evaluated = [subject for subject in result.subjects() if subject.evaluation is not None]
    counts = [1 if each is result.bundle else simultaneous.get(each.name, 1) for each in evaluated]
    return baseline.evaluation, [each.evaluation for each in evaluated if each.evaluation is not None], counts


def with_comparisons(result: WorkloadResult, outcome: Iterable[Comparison] | Failure) -> WorkloadResult:
    """Add the comparisons, in the order of `comparisons`."""
    if isinstance(outcome, Failure):
        return _with_failures(result, lambda name: outcome)
    in_order = iter(outcome)
    return _updated(result, lambda subject, key: {"comparison": next(in_order) if subject.evaluation else None})


def recipes_to_study(result: WorkloadResult) -> list[Recipe]:
    """Return the recipes that quantize and have a candidate without failures."""
    good = {candidate.recipe for candidate in result.candidates if candidate.failure is None}
    return [recipe for recipe in result.workload.recipe if recipe.quantizes and recipe.name in good]


def subjects_to_time(result: WorkloadResult) -> list[BenchmarkCandidate]:
    """Return the candidates without failures, and the current bundle; empty if every candidate failed."""
    planned = [_to_time(result, subject) for subject in result.subjects() if subject.failure is None]
    timed = [subject for subject in planned if subject is not None]
    return timed if any(subject.setting == "primary" for subject in timed) else []


def _to_time(result: WorkloadResult, subject: CandidateResult) -> BenchmarkCandidate | None:
    """Describe a candidate or the current bundle for the benchmark, by facts that are known before timing."""
    if subject.built is None or subject.evaluation is None:
        return None
    workload, current, gate = result.workload, result.current, result.workload.gate
    outputs, twin = subject.evaluation.outputs, workload.twin(subject.runtime)
    if subject is result.bundle:
        twin = twin if isinstance(current, CurrentBundle) and current.coverage else None
        return BenchmarkCandidate(candidate=subject.built, outputs=outputs, setting="current", twin=twin)
    row = candidate_columns(result, subject)
    speed_matters = gate.objective == "fastest" or gate.min_speedup is not None
    is_current = speed_matters and isinstance(current, CurrentBundle) and current.same_as == subject.built.name
    # A withdrawn candidate must not end the timing of slower candidates, because the gate never promotes it.
    withdrawn = isinstance(current, CurrentBundle) and subject.built.name in current.withdrawn
    promising = may_be_promoted(workload, row) and not withdrawn
    return BenchmarkCandidate(
        candidate=subject.built,
        outputs=outputs,
        speed_decides=speed_matters and (promising or is_current),
        is_current=is_current,
        may_be_promoted=promising,
        twin=None if is_float(row) else twin,
        could_serve=could_serve(workload, row),
    )


def with_benchmark(result: WorkloadResult, outcome: BenchmarkResult | Failure) -> WorkloadResult:
    """Add the benchmark's results, and a failure for each candidate that the benchmark refused."""
    if isinstance(outcome, Failure):
        return _with_failures(result, lambda name: outcome)
    refused = {name: Failure(stage="benchmark", error=error) for name, error in outcome.refused.items()}
    return _with_failures(result.model_copy(update={"benchmark": outcome}), refused.get)


def _with_failures(result: WorkloadResult, failure_of: Callable[[str], Failure | None]) -> WorkloadResult:
    """Record the failures that `failure_of` returns, but keep earlier ones."""
    return _updated(result, lambda subject, key: {"failure": subject.failure or failure_of(key)})


def _updated(result: WorkloadResult, change: Callable[[CandidateResult, str], dict[str, object]]) -> WorkloadResult:
    """Update the candidates, and then the current bundle, with the fields that `change` returns."""
    updated = []
    for subject in result.subjects():
        key = subject.name.key("current" if subject is result.bundle else "primary")
        updated.append(subject.model_copy(update=change(subject, key)))
    bundle = updated.pop() if result.bundle is not None else None
    return result.model_copy(update={"candidates": tuple(updated), "bundle": bundle})
