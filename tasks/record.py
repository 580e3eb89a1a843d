"""Turn what the stages found into rows of the result tables; pure functions, no torch."""

from __future__ import annotations

import math
from datetime import date, datetime

from storage.results import Cell, Row
from tasks.job import Job
from tasks.refs import CandidateRef, DatasetRef, Frozen
from tasks.results import BenchmarkResult, Comparison, Evaluation, LayerSensitivity
from tasks.workload.workload import Workload


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
        return next((each for each in self.candidates if (each.recipe, each.runtime) == (recipe, runtime)), None)


class RunInfo(Frozen):
    """What every row of a run has in common."""

    run_id: str
    night: date
    profile: str


def measurement_rows(run: RunInfo, result: WorkloadResult, measured_at: datetime) -> list[Row]:
    """Rows of ``measurements`` for one workload: every candidate, attempt and setting, failed ones included."""
    rows: list[Row] = []
    for candidate in result.candidates:
        common = _candidate_columns(run, result, candidate) | {"measured_at": measured_at}
        timed = [
            common | _benchmark_columns(benchmark) | timing.model_dump(exclude={"recipe", "runtime"})
            for benchmark in result.benchmarks
            for timing in benchmark.timings
            if (timing.recipe, timing.runtime) == (candidate.recipe, candidate.runtime) and candidate.failure is None
        ]
        rows += timed or [common | _untimed(result)]
    return rows


def layer_rows(run: RunInfo, result: WorkloadResult) -> list[Row]:
    """Rows of ``layers``: coverage of every recipe, with sensitivity where it was computed."""
    sensitivity = {(layer.recipe, layer.module): layer for layer in result.sensitivities}
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
                **module.model_dump(exclude={"reason"}),
                "reason": module.reason or None,
                "sqnr_db": found.sqnr_db if found else None,
                "sensitivity_rank": found.rank if found else None,
                "kept_float_quality": found.kept_float_quality if found else None,
            }
    return list(rows.values())


def _candidate_columns(run: RunInfo, result: WorkloadResult, candidate: CandidateResult) -> dict[str, Cell]:
    """What does not depend on how the candidate was timed."""
    workload, job, failure, built = result.workload, result.job, candidate.failure, candidate.built
    recipe = workload.recipe_named(candidate.recipe)
    columns: dict[str, Cell] = {
        **run.model_dump(),
        "workload": workload.name,
        "recipe": candidate.recipe,
        "runtime": candidate.runtime,
        "status": "failed" if failure else "ok",
        "stage": failure.stage if failure else None,
        "error": failure.error if failure else None,
        "purpose": workload.domain,
        "method": recipe.method,
        "engine": recipe.quantized_engine,
        "baseline": workload.benchmark.baseline,
        "is_baseline": (candidate.recipe, candidate.runtime) == workload.baseline(),
        "checkpoint_digest": job.checkpoint.digest if job else None,
        "data_digest": result.dataset.digest if result.dataset else None,
        "calibration_digest": (result.dataset.calibration_digest or None) if result.dataset else None,
    }
    baseline = result.baseline()
    if built is not None:
        reference = baseline.built.size_bytes if baseline and baseline.built else None
        counted = [module for module in built.coverage if module.parameters]
        columns |= {
            "flow": built.graph or None,
            "coverage": built.covered_share,
            "modules_quantized": sum(module.quantized for module in counted),
            "modules_total": len(counted),
            "artifact_digest": built.digest,
            "size_bytes": built.size_bytes,
            "baseline_size_bytes": reference,
            "size_ratio": reference / built.size_bytes if reference is not None else None,
        }
    if (evaluation := candidate.evaluation) is not None:
        columns |= {
            "quality_metric": evaluation.quality_metric,
            "quality": evaluation.quality,
            "higher_is_better": evaluation.higher_is_better,
            "evaluation_mode": evaluation.mode or None,
            "evaluation_samples": evaluation.samples,
            # A number without a value would cost the whole file: the table takes neither NaN nor infinities.
            "metrics": sorted((name, value) for name, value in evaluation.metrics.items() if math.isfinite(value)),
            "baseline_quality": baseline.evaluation.quality if baseline and baseline.evaluation else None,
        }
        columns |= candidate.comparison.model_dump() if candidate.comparison else {}
    return columns


def _benchmark_columns(benchmark: BenchmarkResult) -> dict[str, Cell]:
    return benchmark.model_dump(include={"attempt", "fingerprint", "verdict", "aa_ratio", "aa_low", "aa_high"})


def _untimed(result: WorkloadResult) -> dict[str, Cell]:
    settings = result.workload.benchmark.model_dump(include={"threads", "batch_size"})
    return {"setting": "primary", "attempt": 1, "verdict": "not-measured", **settings}
