"""The rows of a run's tables, from what its stages returned."""

from __future__ import annotations

from datetime import datetime

from storage.digest import canonical_json
from storage.results import UNKNOWN, Cell, Row
from storage.results.tables import MEASUREMENTS, TEXT
from storage.results.values import known
from tasks.benchmark.messages import INCUMBENT_SUFFIX
from tasks.extensions import RUNTIMES
from tasks.machine import Evidence
from tasks.proofs import doubt_about_batches
from tasks.refs import Frozen
from tasks.results import BenchmarkResult, CandidateResult, Incumbent, RunInfo, Timing, WorkloadResult

_AA = tuple(f"{caches}aa_{column}" for caches in ("", "cold_") for column in ("ratio", "low", "high"))


def measurement_rows(run: RunInfo, result: WorkloadResult, measured_at: datetime) -> list[Row]:
    """Return a workload's rows of ``measurements``: every candidate and setting, failed ones and the incumbent too.

    A value that the table does not take is NULL already: the gate must see the rows that are recorded.
    """
    benchmark = result.benchmark
    shown: dict[str, Cell] = {}
    if benchmark is not None:
        shown |= benchmark.model_dump(include={"fingerprint", "verdict", *_AA})
        host = Evidence.model_validate_json(benchmark.evidence_before).machine
        shown |= {"machine": host.digest, "environment": host.environment}
    primary = result.workload.benchmark.model_dump(include={"threads", "batch_size"})
    rows: list[Row] = []
    for candidate in (*result.candidates, *_incumbents(result)):
        deployed = candidate not in result.candidates
        common = candidate_columns(result, candidate)
        common |= run.model_dump() | {"measured_at": measured_at}
        if deployed and isinstance(result.incumbent, Incumbent):
            # Its modules were counted when it was made, and its files do not name them any more.
            common |= {"artifact_digest": result.incumbent.made_as, "coverage": result.incumbent.coverage}
            common |= {"modules_quantized": None, "modules_total": None}
        timed = [
            common
            | shown
            | _recorded(timing)
            # The A/A check was made in the primary setting; it says nothing of another batch size or number of threads.
            | (dict.fromkeys(("verdict", *_AA)) if timing.setting == "throughput" else {})
            | _proof_columns(benchmark, timing, candidate.evaluation.batch_difference if candidate.evaluation else None)
            for timing in (benchmark.timings if benchmark and candidate.failure is None else ())
            if (timing.recipe, timing.runtime) == (candidate.recipe, candidate.runtime)
            and (timing.setting == "incumbent") == deployed
        ]
        untimed: Row = {"setting": "incumbent" if deployed else "primary", "verdict": "not-measured", **primary}
        rows += timed or [{**common, **untimed}]
    return [known(MEASUREMENTS, row) for row in rows]


def _incumbents(result: WorkloadResult) -> list[CandidateResult]:
    held = result.incumbent
    if not isinstance(held, Incumbent) or held.candidate is None or held.same_as:
        return []
    stages = {name: getattr(held, name) for name in ("evaluation", "comparison", "failure")}
    candidate = held.candidate
    return [CandidateResult(recipe=candidate.recipe, runtime=candidate.runtime, built=candidate, **stages)]


def _proof_columns(
    benchmark: BenchmarkResult | None, timing: Timing, batch_difference: float | None
) -> dict[str, Cell]:
    # It was looked at in the primary setting.
    if benchmark is None or timing.setting == "throughput":
        return {}
    name = f"{timing.recipe}/{timing.runtime}{INCUMBENT_SUFFIX if timing.setting == 'incumbent' else ''}"
    unknown: dict[str, Cell] = {UNKNOWN: benchmark.unknown[name]} if name in benchmark.unknown else {}
    proof = benchmark.proofs.get(name)
    if proof is None:
        return unknown
    doubts = [*proof.doubts, *filter(None, [doubt_about_batches(batch_difference)])]
    return unknown | _recorded(proof) | {"doubts": canonical_json(doubts)}


def layer_rows(run: RunInfo, result: WorkloadResult) -> list[Row]:
    """Rows of ``layers``: coverage of every candidate, with the recipe's sensitivity where it was computed."""
    sensitivity = {(layer.recipe, layer.module): layer for layer in result.sensitivities}
    rows: list[Row] = []
    for candidate in result.candidates:
        for module in candidate.built.coverage if candidate.built else ():
            found = sensitivity.get((candidate.recipe, module.module))
            rows.append(
                {
                    "run_id": run.run_id,
                    "night": run.night,
                    "workload": result.workload.name,
                    "recipe": candidate.recipe,
                    "runtime": candidate.runtime,
                    **module.model_dump(exclude={"reason"}),
                    "reason": module.reason or None,
                    "sqnr_db": found.sqnr_db if found else None,
                    "sensitivity_rank": found.rank if found else None,
                    "kept_float_quality": found.kept_float_quality if found else None,
                }
            )
    return rows


def candidate_columns(result: WorkloadResult, candidate: CandidateResult) -> dict[str, Cell]:
    """What is known of a candidate before it is timed, by column of ``measurements``."""
    workload, job, failure, built = result.workload, result.job, candidate.failure, candidate.built
    # An incumbent may be of a recipe that the workload, or this run of it, no longer has.
    recipe = next((each for each in workload.recipe if each.name == candidate.recipe), None)
    columns: dict[str, Cell] = {
        "workload": workload.name,
        "recipe": candidate.recipe,
        "runtime": candidate.runtime,
        "status": "ok" if failure is None else "skipped" if failure.skipped else "failed",
        "stage": failure.stage if failure else None,
        "error": failure.error if failure else None,
        "method": recipe.method if recipe else None,
        "engine": RUNTIMES[candidate.runtime].engine(recipe) if recipe else None,
        "baseline": workload.benchmark.baseline,
        "caches": workload.benchmark.caches,
        "is_baseline": (candidate.recipe, candidate.runtime) == workload.baseline(),
        "checkpoint_digest": job.checkpoint.digest if job else None,
        "data_digest": result.dataset.digest if result.dataset else None,
        "calibration_digest": (result.dataset.calibration_digest or None) if result.dataset else None,
    }
    baseline = result.baseline()
    if built is not None:
        reference = baseline.built.size_bytes if baseline and baseline.built else None
        counted = [module for module in built.coverage if module.parameters]
        columns |= _recorded(built, "coverage") | {
            "coverage": built.covered_share,
            "modules_quantized": sum(module.quantized for module in counted),
            "modules_total": len(counted),
            "artifact_digest": built.digest,
            "baseline_size_bytes": reference,
            "size_ratio": reference / built.size_bytes if reference is not None and built.size_bytes else None,
        }
    if (evaluation := candidate.evaluation) is not None:
        columns |= _recorded(evaluation) | {
            "evaluation_mode": evaluation.mode or None,
            "evaluation_samples": evaluation.samples,
            "baseline_quality": baseline.evaluation.quality if baseline and baseline.evaluation else None,
        }
        columns |= _recorded(candidate.comparison) if candidate.comparison else {}
    return columns


def _recorded(value: Frozen, *without: str) -> dict[str, Cell]:
    """Return fields that are columns of ``measurements``: "" as NULL, maps sorted, nested values as JSON."""
    cells: dict[str, Cell] = {}
    for column in MEASUREMENTS.columns:
        if column.name in type(value).model_fields.keys() - {"recipe", "runtime", *without}:
            cell = getattr(value, column.name)
            if isinstance(cell, dict):
                cell = dict(sorted(cell.items()))
            elif isinstance(cell, tuple) and column.type == TEXT:
                cell = canonical_json(value.model_dump(mode="json", include={column.name})[column.name])
            cells[column.name] = None if cell == "" else cell
    return cells
