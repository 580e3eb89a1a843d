"""What stages measured: small frozen values that travel between tasks, and the rows that they become; no torch."""

from __future__ import annotations

import math
from datetime import date, datetime
from typing import Literal

from pydantic import Field

from storage.results import Cell, Row
from tasks.job import Job
from tasks.refs import ArtifactRef, CandidateRef, DatasetRef, Frozen
from tasks.workload.workload import Workload


class Evaluation(Frozen):
    """Quality of one candidate.

    ``outputs`` refers to an artifact with ``golden.safetensors`` (the timed inputs and the outputs that the evaluated
    model gave for them) and ``samples.safetensors`` (per-sample results for paired comparisons). ``metrics`` holds
    every number that was computed, ``quality`` the one that the gate looks at.
    """

    recipe: str
    runtime: str
    quality_metric: str
    quality: float
    higher_is_better: bool
    metrics: dict[str, float]
    mode: str = ""
    samples: int
    outputs: ArtifactRef


class Comparison(Frozen):
    """A candidate's quality against the baseline's on the same samples; difference = candidate - baseline."""

    quality_difference: float
    quality_difference_low: float | None = None
    quality_difference_high: float | None = None
    agreement: float | None = None


class LayerSensitivity(Frozen):
    """Signal to quantization noise of one quantized module's output against float on the same input, in dB.

    ``rank`` is 1 for the module that loses most. ``kept_float_quality`` is the quality with this module and every worse
    one kept float, where that was evaluated.
    """

    recipe: str
    module: str
    type: str
    sqnr_db: float
    rank: int
    kept_float_quality: float | None = None


class Timing(Frozen):
    """One candidate (or further setting of it) as timed; ``speedup`` = baseline latency ÷ candidate latency.

    ``block_launch``, ``block_round`` and ``block_s`` are the raw samples: launch number, round number and seconds per
    call in each timed block, in the order in which they were taken. Percentiles come from single calls and are None
    where there are too few.
    """

    recipe: str
    runtime: str
    setting: Literal["primary", "throughput", "a/a"]
    threads: int
    batch_size: int
    latency_s: float
    latency_q25_s: float
    latency_q75_s: float
    baseline_latency_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    blocks: int
    calls_per_block: int
    load_s: float
    first_call_s: float
    latency_p50_s: float | None = None
    latency_p90_s: float | None = None
    latency_p99_s: float | None = None
    rss_loaded_bytes: int | None = None
    peak_rss_bytes: int | None = None
    block_launch: tuple[int, ...] = ()
    block_round: tuple[int, ...] = ()
    block_s: tuple[float, ...] = ()


class BenchmarkResult(Frozen):
    """All timings of one workload, with the A/A check and the machine's state; one per attempt.

    ``refused`` maps ``recipe/runtime`` to the reason why it was not timed (its output was wrong, it did not load).
    """

    workload: str
    baseline: str
    profile: str
    attempt: int = 1
    verdict: Literal["valid", "inconclusive"]
    aa_ratio: float
    aa_low: float
    aa_high: float
    fingerprint: str
    timings: tuple[Timing, ...]
    refused: dict[str, str] = Field(default_factory=dict)
    evidence_before: str
    evidence_after: str
    wall_s: float
    timed_s: float


class Failure(Frozen):
    """Why a candidate has no result: the stage that failed and its message."""

    stage: str
    error: str


class CandidateResult(Frozen):
    """What one candidate's stages returned, as far as they came."""

    recipe: str
    runtime: str
    built: CandidateRef | None = None
    evaluation: Evaluation | None = None
    comparison: Comparison | None = None
    failure: Failure | None = None


class WorkloadResult(Frozen):
    """What one workload's stages returned; ``benchmarks`` holds each attempt."""

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
    of_benchmark = {"attempt", "fingerprint", "verdict", "aa_ratio", "aa_low", "aa_high"}
    setting = result.workload.benchmark.model_dump(include={"threads", "batch_size"})
    untimed: Row = {"setting": "primary", "attempt": 1, "verdict": "not-measured", **setting}
    for candidate in result.candidates:
        common = _candidate_columns(run, result, candidate) | {"measured_at": measured_at}
        timed = [
            common | benchmark.model_dump(include=of_benchmark) | timing.model_dump(exclude={"recipe", "runtime"})
            for benchmark in result.benchmarks
            for timing in benchmark.timings
            if (timing.recipe, timing.runtime) == (candidate.recipe, candidate.runtime) and candidate.failure is None
        ]
        rows += timed or [{**common, **untimed}]
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
