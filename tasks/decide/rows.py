"""Compute the rows of a run's tables from the results of the stages."""

from __future__ import annotations

from datetime import datetime

from storage.digest import canonical_json
from storage.results import UNKNOWN, Cell, Row
from storage.results.tables import MEASUREMENTS, TEXT
from storage.results.writer import known
from tasks.environment.machine import Evidence
from tasks.runtimes.base import runtime_named
from tasks.values.proofs import doubt_about_batches, doubt_about_speed
from tasks.values.refs import Frozen
from tasks.values.results import BenchmarkResult, CandidateResult, CurrentBundle, RunInfo, Timing, WorkloadResult

_AA = tuple(f"{caches}aa_{column}" for caches in ("", "cold_") for column in ("ratio", "low", "high"))


def measurement_rows(
    run: RunInfo, result: WorkloadResult, measured_at: datetime, baseline_reason: str | None = None
) -> list[Row]:
    """Return ``measurements`` rows for all candidates of a workload, including failed candidates, in every setting.

    Values that the table does not accept become NULL here, because the gate must read the rows as they are recorded.
    """
    benchmark = result.benchmark
    shared: dict[str, Cell] = {}
    if benchmark is not None:
        shared |= benchmark.model_dump(include={"fingerprint", "verdict", *_AA})
        host = Evidence.model_validate_json(benchmark.evidence_before).machine
        shared |= {"machine": host.digest, "environment": host.environment}
    primary = result.workload.benchmark.model_dump(include={"threads", "batch_size"})
    rows: list[Row] = []
    for candidate in result.subjects():
        deployed = candidate is result.bundle
        common = candidate_columns(result, candidate)
        common |= run.model_dump() | {"measured_at": measured_at}
        common |= {"baseline_reason": baseline_reason} if common["is_baseline"] else {}
        if deployed and isinstance(result.current, CurrentBundle):
            common |= {"artifact_digest": result.current.made_as, "coverage": result.current.coverage}
        timed = [
            common | shared | _recorded(timing) | _proof_columns(benchmark, timing, candidate)
            for timing in (benchmark.timings if benchmark and candidate.failure is None else ())
            if timing.name == candidate.name and (timing.setting == "current") == deployed
        ]
        untimed: Row = {"setting": "current" if deployed else "primary", "verdict": "not-measured", **primary}
        rows += timed or [{**common, **untimed}]
    return [known(MEASUREMENTS, row) for row in rows]


def _proof_columns(benchmark: BenchmarkResult | None, timing: Timing, candidate: CandidateResult) -> dict[str, Cell]:
    if benchmark is None:
        return {}
    name = timing.name.key("primary" if timing.setting == "a/a" else timing.setting)
    columns: dict[str, Cell] = {UNKNOWN: benchmark.unknown[name]} if name in benchmark.unknown else {}
    if timing.setting != "a/a" and (capacity := benchmark.capacities.get(name)):
        columns |= _recorded(capacity)
    proof = benchmark.proofs.get(name)
    doubts = [*(candidate.built.notes if candidate.built else ()), *filter(None, [doubt_about_speed(timing.speedup)])]
    if proof is not None:
        columns |= _recorded(proof)
        batches = doubt_about_batches(candidate.evaluation.batch_difference if candidate.evaluation else None)
        doubts = [*proof.doubts, *filter(None, [batches]), *doubts]
    return columns | ({"doubts": canonical_json(doubts)} if proof or doubts else {})


def layer_rows(run: RunInfo, result: WorkloadResult) -> list[Row]:
    """Return rows of the ``layers`` table: every candidate's coverage, with the recipe's sensitivity if it is known."""
    sensitivity = {(ranked.recipe, ranked.module): ranked for ranked in result.sensitivities}
    rows: list[Row] = []
    for candidate in result.candidates:
        for module in candidate.built.coverage if candidate.built else ():
            layer = sensitivity.get((candidate.recipe, module.module))
            row: dict[str, Cell] = run.model_dump(exclude={"profile"}) | module.model_dump()
            row |= {"workload": result.workload.name, "recipe": candidate.recipe, "runtime": candidate.runtime}
            if layer is not None:
                row |= layer.model_dump(include={"sqnr_db"}) | {"sensitivity_rank": layer.rank}
            rows.append(row | {"reason": module.reason or None})
    return rows


def candidate_columns(result: WorkloadResult, candidate: CandidateResult) -> dict[str, Cell]:
    """Return the columns of a candidate's ``measurements`` row that are known before timing."""
    workload, job, failure, built = result.workload, result.job, candidate.failure, candidate.built
    # The current bundle's recipe may have been removed from the workload, or left out of this run.
    recipe = next((recipe for recipe in workload.recipe if recipe.name == candidate.recipe), None)
    columns: dict[str, Cell] = {
        "workload": workload.name,
        "recipe": candidate.recipe,
        "runtime": candidate.runtime,
        "status": "ok" if failure is None else "skipped" if failure.skipped else "failed",
        "stage": failure.stage if failure else None,
        "error": failure.error if failure else None,
        "method": recipe.method if recipe else None,
        "engine": runtime_named(candidate.runtime).engine(recipe) if recipe else None,
        "baseline": str(workload.baseline_name),
        "caches": workload.benchmark.caches,
        "is_baseline": candidate.name == workload.baseline_name,
        "checkpoint_digest": job.checkpoint.digest if job else None,
        "data_digest": result.dataset.digest if result.dataset else None,
        "calibration_digest": (result.dataset.calibration_digest or None) if result.dataset else None,
    }
    baseline = result.baseline()
    if built is not None:
        reference = baseline.built.size_bytes if baseline and baseline.built else None
        columns |= _recorded(built) | {
            "coverage": built.covered_share,
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


def _recorded(value: Frozen) -> dict[str, Cell]:
    """Return a result's ``measurements`` columns; sort maps, and convert ``""`` to NULL and tuples to JSON."""
    cells: dict[str, Cell] = {}
    for column in MEASUREMENTS.columns:
        if column.name in type(value).model_fields.keys() - {"recipe", "runtime", "coverage"}:
            cell = getattr(value, column.name)
            if isinstance(cell, dict):
                cell = dict(sorted(cell.items()))
            elif isinstance(cell, tuple) and column.type == TEXT:
                cell = canonical_json(value.model_dump(mode="json", include={column.name})[column.name])
            cells[column.name] = None if cell == "" else cell
    return cells
