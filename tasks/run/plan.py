"""Plan a workload's stages from the results so far: what to evaluate, to compare, to time and to study."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.decide.gate import could_serve, may_be_promoted
from tasks.decide.rows import candidate_columns
from tasks.measure.benchmark.stage import BenchmarkCandidate
from tasks.values.refs import CandidateRef
from tasks.values.results import CandidateResult, Evaluation, Failure, Incumbent, WorkloadResult
from tasks.workload.gate import is_float
from tasks.workload.recipe import Recipe
from tasks.workload.registry import METHODS


def floats_to_time(result: WorkloadResult) -> list[BenchmarkCandidate]:
    """Return the evaluated float candidates that could be the baseline."""
    return [subject for subject in subjects_to_time(result) if subject.name in result.workload.floats()]


def bundle_to_evaluate(result: WorkloadResult) -> CandidateRef | None:
    """Return the current bundle's own files, unless they cannot be compared because the baseline failed."""
    baseline = result.baseline()
    return result.bundle.built if result.bundle and baseline and baseline.evaluation else None


def comparisons(
    result: WorkloadResult, simultaneous: Mapping[tuple[str, str], int]
) -> tuple[Evaluation, list[Evaluation], list[int]] | Failure:
    """Return the baseline's evaluation, the evaluations to compare with it, and how many intervals must hold at once.

    `simultaneous` has these numbers for the candidates that a search chose; all other intervals are independent.
    """
    baseline = result.baseline()
    if baseline is None or baseline.evaluation is None:
        why = baseline.failure.error if baseline and baseline.failure else "it was not run"
        return Failure(stage="compare", error=f"The baseline {result.workload.baseline_name} failed: {why}")
    evaluated = [subject for subject in result.subjects() if subject.evaluation is not None]
    counts = [1 if one is result.bundle else simultaneous.get((one.recipe, one.runtime), 1) for one in evaluated]
    return baseline.evaluation, [one.evaluation for one in evaluated if one.evaluation is not None], counts


def subjects_to_time(result: WorkloadResult) -> list[BenchmarkCandidate]:
    """Return the candidates without failures, and the current bundle; empty if every candidate failed."""
    planned = [_to_time(result, subject) for subject in result.subjects() if subject.failure is None]
    timed = [subject for subject in planned if subject is not None]
    return timed if any(not subject.is_bundle for subject in timed) else []


def _to_time(result: WorkloadResult, subject: CandidateResult) -> BenchmarkCandidate | None:
    """Describe a candidate or the current bundle for the benchmark, by facts that are known before timing."""
    if subject.built is None or subject.evaluation is None:
        return None
    workload, current, gate = result.workload, result.incumbent, result.workload.gate
    timed = BenchmarkCandidate(candidate=subject.built, outputs=subject.evaluation.outputs)
    twin = workload.twin(subject.runtime)
    if subject is result.bundle:
        is_quantized = isinstance(current, Incumbent) and bool(current.coverage)
        return timed.model_copy(update={"is_bundle": True, "twin": twin if is_quantized else ""})
    row = candidate_columns(result, subject)
    speed_matters = gate.objective == "fastest" or gate.min_speedup is not None
    is_current = speed_matters and isinstance(current, Incumbent) and current.same_as == subject.built.name
    promising = may_be_promoted(workload, row)
    return timed.model_copy(
        update={
            "speed_decides": speed_matters and (promising or is_current),
            "is_current": is_current,
            "may_be_promoted": promising,
            "twin": "" if is_float(row) else twin,
            "could_serve": could_serve(workload, row),
        }
    )


def recipes_to_study(result: WorkloadResult) -> list[Recipe]:
    """Return the recipes that quantize and have a candidate without failures."""
    good = {candidate.recipe for candidate in result.candidates if candidate.failure is None}
    return [recipe for recipe in result.workload.recipe if METHODS[recipe.method].quantizes and recipe.name in good]
