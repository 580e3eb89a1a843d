"""Turn what the stages found into rows of the result tables; pure functions, no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

from tasks.job import Job
from tasks.refs import CandidateRef, DatasetRef, Frozen
from tasks.results import BenchmarkResult, Comparison, Evaluation, LayerSensitivity, Timing
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

Row = dict[str, Any]


class Failure(Frozen):
    """Why a candidate has no result: the stage that failed and its message."""

    stage: str
    error: str


class CandidateResult(Frozen):
    """All that one candidate's stages gave, as far as they came."""

    recipe: str
    runtime: str
    built: CandidateRef | None = None
    evaluation: Evaluation | None = None
    comparison: Comparison | None = None
    failure: Failure | None = None


class WorkloadResult(Frozen):
    """All that one workload's stages gave; ``benchmarks`` holds each attempt."""

    workload: Workload
    dataset: DatasetRef | None = None
    job: Job[Workload] | None = None
    candidates: tuple[CandidateResult, ...]
    benchmarks: tuple[BenchmarkResult, ...] = ()
    sensitivities: tuple[LayerSensitivity, ...] = ()

    def baseline(self) -> CandidateResult | None:
        """The baseline's own result, where the recipe is in the run."""
        recipe, runtime = self.workload.baseline()
        return next((one for one in self.candidates if (one.recipe, one.runtime) == (recipe, runtime)), None)


class RunInfo(Frozen):
    """What every row of a run has in common."""

    run_id: str
    night: date
    profile: str


def measurement_rows(run: RunInfo, result: WorkloadResult, measured_at: datetime) -> list[Row]:
    """Rows of ``measurements`` for one workload: every candidate, attempt and setting, failed ones included."""
    rows: list[Row] = []
    for candidate in result.candidates:
        common = _common(run, result, candidate, measured_at)
        timed = list(_timings(result, candidate))
        if candidate.failure is not None or not timed:
            rows.append(common | _untimed(result, candidate))
            continue
        rows.extend(common | _timing_columns(timing) | _benchmark_columns(benchmark) for benchmark, timing in timed)
    return rows


def layer_rows(run: RunInfo, result: WorkloadResult) -> list[Row]:
    """Rows of ``layers``: coverage of every recipe, with sensitivity where it was computed."""
    sensitivity = {(one.recipe, one.module): one for one in result.sensitivities}
    rows: dict[tuple[str, str], Row] = {}
    for candidate in result.candidates:
        for module in candidate.built.coverage if candidate.built else ():
            found = sensitivity.get((candidate.recipe, module.module))
            # Runtimes of one recipe share its modules: one row for each module, not for each runtime.
            rows[candidate.recipe, module.module] = {
                "run_id": run.run_id,
                "night": run.night,
                "workload": result.workload.name,
                "recipe": candidate.recipe,
                "module": module.module,
                "type": module.type,
                "parameters": module.parameters,
                "quantized": module.quantized,
                "reason": module.reason or None,
                "sqnr_db": found.sqnr_db if found else None,
                "sensitivity_rank": found.rank if found else None,
                "kept_float_quality": found.kept_float_quality if found else None,
            }
    return list(rows.values())


def _common(run: RunInfo, result: WorkloadResult, candidate: CandidateResult, measured_at: datetime) -> Row:
    workload = result.workload
    recipe = workload.recipe_named(candidate.recipe)
    return {
        "run_id": run.run_id,
        "night": run.night,
        "profile": run.profile,
        "workload": workload.name,
        "recipe": candidate.recipe,
        "runtime": candidate.runtime,
        "measured_at": measured_at,
        "status": "failed" if candidate.failure else "ok",
        "stage": candidate.failure.stage if candidate.failure else None,
        "error": candidate.failure.error if candidate.failure else None,
        "purpose": workload.domain,
        "baseline": workload.benchmark.baseline,
        "is_baseline": f"{candidate.recipe}/{candidate.runtime}" == workload.benchmark.baseline,
        "checkpoint_digest": result.job.checkpoint.digest if result.job else None,
        "data_digest": result.dataset.digest if result.dataset else None,
        "calibration_digest": (result.dataset.calibration_digest or None) if result.dataset else None,
        **_recipe_columns(recipe, candidate),
        **_quality_columns(result, candidate),
        **_size_columns(result, candidate),
    }


def _recipe_columns(recipe: Recipe, candidate: CandidateResult) -> Row:
    built = candidate.built
    columns: Row = {"method": recipe.method, "engine": recipe.quantized_engine}
    if built is not None:
        counted = [module for module in built.coverage if module.parameters]
        columns |= {
            "flow": built.graph or None,
            "coverage": built.covered_share,
            "modules_quantized": sum(module.quantized for module in counted),
            "modules_total": len(counted),
            "artifact_digest": built.digest,
        }
    return columns


def _quality_columns(result: WorkloadResult, candidate: CandidateResult) -> Row:
    evaluation, comparison = candidate.evaluation, candidate.comparison
    if evaluation is None:
        return {}
    baseline = result.baseline()
    return {
        "quality_metric": evaluation.quality_metric,
        "quality": evaluation.quality,
        "higher_is_better": evaluation.higher_is_better,
        "evaluation_mode": evaluation.mode or None,
        "evaluation_samples": evaluation.samples,
        "metrics": sorted((name, number) for name, number in evaluation.metrics.items() if math.isfinite(number)),
        "baseline_quality": baseline.evaluation.quality if baseline and baseline.evaluation else None,
        "quality_difference": comparison.quality_difference if comparison else None,
        "quality_difference_low": comparison.quality_difference_low if comparison else None,
        "quality_difference_high": comparison.quality_difference_high if comparison else None,
        "agreement": comparison.agreement if comparison else None,
    }


def _size_columns(result: WorkloadResult, candidate: CandidateResult) -> Row:
    if candidate.built is None:
        return {}
    size = candidate.built.size_bytes
    baseline = result.baseline()
    reference = baseline.built.size_bytes if baseline and baseline.built else None
    return {
        "size_bytes": size,
        "baseline_size_bytes": reference,
        "size_ratio": reference / size if reference is not None else None,
    }


def _timings(result: WorkloadResult, candidate: CandidateResult) -> Iterator[tuple[BenchmarkResult, Timing]]:
    for benchmark in result.benchmarks:
        for timing in benchmark.timings:
            if (timing.recipe, timing.runtime) == (candidate.recipe, candidate.runtime):
                yield benchmark, timing


def _untimed(result: WorkloadResult, candidate: CandidateResult) -> Row:
    settings = result.workload.benchmark
    return {
        "setting": "primary",
        "attempt": 1,
        "threads": settings.threads,
        "batch_size": settings.batch_size,
        "verdict": "not-measured",
    }


def _timing_columns(timing: Timing) -> Row:
    columns = timing.model_dump(exclude={"recipe", "runtime"})
    for name in ("block_launch", "block_round", "block_s"):
        columns[name] = list(columns[name])
    return columns


def _benchmark_columns(benchmark: BenchmarkResult) -> Row:
    return {
        "attempt": benchmark.attempt,
        "fingerprint": benchmark.fingerprint,
        "verdict": benchmark.verdict,
        "aa_ratio": benchmark.aa_ratio,
        "aa_low": benchmark.aa_low,
        "aa_high": benchmark.aa_high,
    }
