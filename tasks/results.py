"""What stages measured: small frozen values that travel between tasks, and the rows that they become; no torch."""

from __future__ import annotations

import math
from datetime import date, datetime
from typing import Literal

from pydantic import Field

from storage.results import Cell, Row, Setting
from tasks.job import Job
from tasks.machine import Evidence
from tasks.refs import ArtifactRef, CandidateRef, DatasetRef, Frozen
from tasks.workload.workload import Workload

# What per-sample contributions to a quality are: independent numbers, 100 (right) or 0 (wrong), or consecutive places
# of one series whose neighbours depend on each other.
Contributions = Literal["independent", "right-or-wrong", "serial"]


class Evaluation(Frozen):
    """Quality of one candidate.

    ``outputs`` refers to an artifact with ``golden.safetensors`` (the timed inputs and the outputs that the evaluated
    model gave for them) and ``samples.safetensors`` (per-sample results for paired comparisons). ``metrics`` holds
    every number that was computed, ``quality`` the one that the gate looks at: as a deployed model is called.
    ``quality_batched`` is the same with an evaluation's rows together in a call; it differs only where rows share the
    ranges of their activations.
    """

    recipe: str
    runtime: str
    quality_metric: str
    quality: float
    higher_is_better: bool
    metrics: dict[str, float]
    mode: str = ""
    quality_batched: float
    samples: int
    contributions: Contributions = "independent"
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

    The ends ``_low`` and ``_high`` of ``speedup`` are those of its 95% interval; its bounds and those of
    ``over_incumbent`` (the incumbent's latency ÷ the candidate's) are what the gate decides by.

    ``block_launch``, ``block_round`` and ``block_s`` are the raw samples: launch number, round number and seconds per
    call in each timed block, in the order in which they were taken. Percentiles come from single calls and are None
    where there are too few.
    """

    recipe: str
    runtime: str
    setting: Setting
    threads: int
    batch_size: int
    latency_s: float
    latency_q25_s: float
    latency_q75_s: float
    baseline_latency_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    speedup_bound_low: float | None = None
    speedup_bound_high: float | None = None
    over_incumbent: float | None = None
    over_incumbent_low: float | None = None
    over_incumbent_high: float | None = None
    launches: int
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
    """All timings of one workload, with the A/A check and the machine's state.

    ``refused`` maps ``recipe/runtime`` to the reason why it was not timed (its output was wrong, it did not load).
    """

    workload: str
    baseline: str
    profile: str
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

    @property
    def resolution(self) -> float:
        """How far from 1 the interval of the A/A check reaches: smaller differences cannot be told."""
        return max(self.aa_high - 1, 1 - self.aa_low)


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


class Incumbent(Frozen):
    """The bundle that is current, and what tonight found about it.

    ``candidate`` holds the bundle's own files: an artifact of them, or tonight's candidate that is the same to the byte,
    which ``same_as`` then names. It is None where they cannot be used, and ``failure`` says why. ``made_as`` is the
    digest of the candidate that was packaged, and ``outdated`` says why the workload no longer asks for it.
    """

    version: str
    candidate: CandidateRef | None = None
    made_as: str = ""
    same_as: str = ""
    outdated: str = ""
    evaluation: Evaluation | None = None
    comparison: Comparison | None = None
    failure: Failure | None = None


class WorkloadResult(Frozen):
    """What one workload's stages returned; ``incumbent`` is None where nothing has been handed over yet."""

    workload: Workload
    dataset: DatasetRef | None = None
    job: Job[Workload] | None = None
    candidates: tuple[CandidateResult, ...]
    incumbent: Incumbent | None = None
    benchmark: BenchmarkResult | None = None
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
    """Rows of ``measurements`` for one workload: each candidate and setting, failed ones and the incumbent included."""
    benchmark = result.benchmark
    shown: dict[str, Cell] = {}
    if benchmark is not None:
        shown |= benchmark.model_dump(include={"fingerprint", "verdict", "aa_ratio", "aa_low", "aa_high"})
        shown |= _host_columns(benchmark)
    primary = result.workload.benchmark.model_dump(include={"threads", "batch_size"})
    rows: list[Row] = []
    for candidate in (*result.candidates, *_incumbents(result)):
        deployed = candidate not in result.candidates
        common = candidate_columns(result, candidate)
        common |= run.model_dump() | {"measured_at": measured_at, "attempt": 1}
        if deployed and result.incumbent:
            common["artifact_digest"] = result.incumbent.made_as
        timed = [
            common | shown | timing.model_dump(exclude={"recipe", "runtime"}) | _verdict_of_its_own(timing)
            for timing in (benchmark.timings if benchmark and candidate.failure is None else ())
            if (timing.recipe, timing.runtime) == (candidate.recipe, candidate.runtime)
            and (timing.setting == "incumbent") == deployed
        ]
        untimed: Row = {"setting": "incumbent" if deployed else "primary", "verdict": "not-measured", **primary}
        rows += timed or [{**common, **untimed}]
    return rows


def _incumbents(result: WorkloadResult) -> list[CandidateResult]:
    """The incumbent as a candidate of its own, where it is none of tonight's."""
    held = result.incumbent
    if held is None or held.candidate is None or held.same_as:
        return []
    found = held.model_dump(include={"evaluation", "comparison", "failure"})
    return [
        CandidateResult.model_validate(
            {"recipe": held.candidate.recipe, "runtime": held.candidate.runtime, "built": held.candidate, **found}
        )
    ]


def _verdict_of_its_own(timing: Timing) -> dict[str, Cell]:
    # The A/A check was made in the primary setting; it says nothing of another batch size or number of threads.
    return dict.fromkeys(("verdict", "aa_ratio", "aa_low", "aa_high")) if timing.setting == "throughput" else {}


def _host_columns(benchmark: BenchmarkResult) -> dict[str, Cell]:
    host = Evidence.model_validate_json(benchmark.evidence_before).machine
    return {"machine": host.digest, "environment": host.environment}


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


def candidate_columns(result: WorkloadResult, candidate: CandidateResult) -> dict[str, Cell]:
    """What is known of a candidate before it is timed, by column of ``measurements``."""
    workload, job, failure, built = result.workload, result.job, candidate.failure, candidate.built
    # An incumbent may be of a recipe that the workload, or this run of it, no longer has.
    recipe = next((each for each in workload.recipe if each.name == candidate.recipe), None)
    columns: dict[str, Cell] = {
        "workload": workload.name,
        "recipe": candidate.recipe,
        "runtime": candidate.runtime,
        "status": "failed" if failure else "ok",
        "stage": failure.stage if failure else None,
        "error": failure.error if failure else None,
        "purpose": workload.domain,
        "method": recipe.method if recipe else None,
        "engine": recipe.quantized_engine if recipe else None,
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
            "recipe_digest": built.recipe_digest or None,
            "source_digest": built.source_digest or None,
            "size_bytes": built.size_bytes,
            "baseline_size_bytes": reference,
            "size_ratio": reference / built.size_bytes if reference is not None else None,
        }
    if (evaluation := candidate.evaluation) is not None:
        columns |= {
            "quality_metric": evaluation.quality_metric,
            "quality": evaluation.quality,
            "quality_batched": evaluation.quality_batched,
            "higher_is_better": evaluation.higher_is_better,
            "evaluation_mode": evaluation.mode or None,
            "evaluation_samples": evaluation.samples,
            # A number without a value would cost the whole file: the table takes neither NaN nor infinities.
            "metrics": sorted((name, value) for name, value in evaluation.metrics.items() if math.isfinite(value)),
            "baseline_quality": baseline.evaluation.quality if baseline and baseline.evaluation else None,
        }
        columns |= candidate.comparison.model_dump() if candidate.comparison else {}
    return columns
