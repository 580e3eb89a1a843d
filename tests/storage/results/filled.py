"""A store with a week of nights of the built-in workloads on two machines, of which questions have answers."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

from storage.results.catalog import refresh
from storage.results.writer import ResultsStore
from tests.storage.results.rows import at, baseline, measurement, promotion, run_row

NIGHTS = [dt.date(2026, 11, day) for day in range(15, 22)]
# Baseline, its seconds a call, the quality metric; recipe/runtime: speed-up, size ratio, quality difference, decision.
WORKLOADS: dict[str, tuple[str, float, str, dict[str, tuple[float, float, float, str]]]] = {
    "lstm-demo": (
        "float/eager", 69.5e-6, "difference_percent",
        {
            "dynamic-int8/eager": (0.35, 1.29, 1.21, "pass"),
            "dynamic-int8/torchscript": (0.41, 0.83, 1.21, "reject"),
            "float/torchscript": (1.13, 0.76, 0.0, "reject"),
        },
    ),
    "resnet18": (
        "float/eager", 7.1e-3, "top1",
        {
            "static-int8/torchscript": (6.25, 3.96, 0.0, "promote"),
            "static-int8/eager": (2.82, 3.96, 0.0, "pass"),
            "float-channels-last/eager": (1.18, 1.0, 0.0, "reject"),
        },
    ),
    "word-lm": (
        "float/torchscript", 715e-6, "loss",
        {
            "dynamic-int8/torchscript": (5.08, 1.7, 0.000566, "promote"),
            "dynamic-int8-embedding8/torchscript": (4.59, 3.83, 0.000688, "pass"),
            "float/eager": (0.91, 1.0, 0.0, "hold"),
        },
    ),
}  # fmt: skip
REASONS = {
    "promote": "stays: it passes, and no challenger is decidedly better",
    "pass": "passes all 3 rules; the current bundle stays: this candidate is 0.552 to 1.48 times as fast, and "
    "more than 1 is required",
    "hold": "min_speedup requires 1.05, but the measured value is uncertain",
    "reject": "min_size_ratio requires 3, but the measured value is 1",
}
MACHINES = {"vnni": ["avx2", "avx512_vnni"], "plain": ["avx2"]}
_QUALITY = {"difference_percent": 0.0, "top1": 99.41, "loss": 5.733}


def fill(root: Path) -> None:
    """Write the nights, one run on each machine, and build the catalog."""
    for night in NIGHTS:
        for machine in MACHINES:
            _run(ResultsStore(root), night, machine)
    finding = {
        "run_id": _run_id(NIGHTS[-1], "vnni"), "night": NIGHTS[-1], "workload": "word-lm",
        "recipe": "dynamic-int8-embedding8", "runtime": "torchscript", "metric": "speedup", "kind": "slower",
        "tonight": 4.59, "tonight_low": 4.04, "tonight_high": 5.21, "reference": 5.6, "change": -0.18, "nights": 5,
        "since": NIGHTS[-2], "cause": "environment", "changed": "torch 2.14.0 -> 2.15.0", "machine": "vnni",
    }  # fmt: skip
    ResultsStore(root).append("findings", [finding], _run_id(NIGHTS[-1], "vnni"), at(NIGHTS[-1], 5))
    accepted = {
        "run_id": "acknowledged-1", "night": NIGHTS[2], "workload": "resnet18", "recipe": "static-int8",
        "runtime": "torchscript", "metric": "size_bytes", "reason": "the classifier has more classes",
        "acknowledged_by": "somebody", "acknowledged_at": at(NIGHTS[2], 9),
    }  # fmt: skip
    ResultsStore(root).append("acknowledgements", [accepted], "acknowledged-1", at(NIGHTS[2], 9))
    refresh(root)


def _run_id(night: dt.date, machine: str) -> str:
    return f"{night:%Y%m%d}-{machine}"


def _run(store: ResultsStore, night: dt.date, machine: str) -> None:
    run = _run_id(night, machine)
    hour = 3 if machine == "plain" else 4  # the machine with VNNI has the night's last word
    measured = [row for name in WORKLOADS for row in _measurements(run, night, machine, name, at(night, hour))]
    decided = [row for name in WORKLOADS for row in _promotions(run, night, name, at(night, hour))]
    isa = {"workload": "word-lm", "before": json.dumps({"machine": {"isa": MACHINES[machine]}})}
    versions = {"python": "3.11.7", "torch": "2.15.0" if night >= NIGHTS[-2] else "2.14.0"}
    summary = run_row(
        run, night, workloads=len(WORKLOADS), candidates_ok=len(measured), fingerprint=machine, host=machine,
        cpu=f"A processor ({machine})", evidence=json.dumps([isa]), versions=json.dumps(versions),
        git_commit=f"{night:%Y%m%d}" * 5, message=f"{len(measured)} candidates measured",
    )  # fmt: skip
    store.append("measurements", measured, run, at(night, hour))
    store.append("promotions", decided, run, at(night, hour))
    store.append("layers", _layers(run, night), run, at(night, hour))
    store.append("runs", [summary], run, at(night, hour))


def _measurements(run: str, night: dt.date, machine: str, workload: str, when: dt.datetime) -> list[dict[str, Any]]:
    named, latency, metric, candidates = WORKLOADS[workload]
    faster = 1.0 if machine == "vnni" else 0.4
    torch = "2.15.0" if night >= NIGHTS[-2] else "2.14.0"
    common = {
        "workload": workload, "measured_at": when, "fingerprint": machine, "machine": machine, "baseline": named,
        "environment": json.dumps({"kernel": "Linux 6.18", "torch": torch}), "quality_metric": metric,
        "higher_is_better": metric == "top1", "baseline_latency_s": latency, "baseline_quality": _QUALITY[metric],
        "aa_ratio": 1.0, "aa_low": 0.97, "aa_high": 1.04, "load_s": 0.02, "first_call_s": 0.3, "launches": 2,
    }  # fmt: skip
    recipe, runtime = named.split("/")
    first: dict[str, Any] = {"recipe": recipe, "runtime": runtime, "latency_s": latency, "quality": _QUALITY[metric]}
    first |= {"size_bytes": 10_000_000, "baseline_size_bytes": 10_000_000, "peak_rss_bytes": 52_200_000}
    rows = [baseline(run, night, **common, **first)]
    for name, (ratio, smaller, difference, _) in candidates.items():
        recipe, runtime = name.split("/")
        speedup = ratio * (faster if "int8" in recipe else 1.0) * (1 + 0.01 * (night.day % 3))
        values = {
            "recipe": recipe, "runtime": runtime,
            "method": recipe.partition("-int8")[0] if "int8" in recipe else "none", "speedup": speedup,
            "latency_s": latency / speedup * 1.1, "size_ratio": smaller,
            "size_bytes": round(1e7 / smaller), "baseline_size_bytes": 10_000_000, "peak_rss_bytes": 40_500_000,
            "quality": _QUALITY[metric] + difference, "quality_difference": difference,
            "quality_difference_low": difference - 0.001, "quality_difference_high": difference + 0.001,
            "over_current": speedup / ratio, "over_current_low": 0.55, "over_current_high": 1.48,
        }  # fmt: skip
        rows.append(measurement(run, night, **common, **values))
    broken = {"recipe": "static-int8", "runtime": "onnxruntime", "status": "failed", "stage": "build", "speedup": None}
    if workload == "resnet18":
        error = "No module named 'onnxruntime'\nInstall it with: pip install 'nightquant[onnxruntime]'"
        rows.append(measurement(run, night, **common, **broken, error=error, latency_s=None, block_s=None))
    return rows


def _promotions(run: str, night: dt.date, workload: str, when: dt.datetime) -> list[dict[str, Any]]:
    rows, was_current = [], night > NIGHTS[0]
    for name, (_, smaller, _, decision) in WORKLOADS[workload][3].items():
        recipe, runtime = name.split("/")
        rule = {"name": "min_size_ratio", "bound": 1.2, "seen": smaller, "note": "", "outcome": "passed"}
        version = f"{NIGHTS[0]}-{workload}" if decision == "promote" else None
        rows.append(
            promotion(
                run, night, workload=workload, recipe=recipe, runtime=runtime, decision=decision, decided_at=when,
                reason=REASONS[decision] if was_current or decision != "promote" else "fastest of those that pass",
                rules=json.dumps([rule | ({} if smaller >= 1.2 else {"outcome": "failed"})]), bundle_version=version,
                current_version=f"{NIGHTS[0]}-{workload}" if was_current else None,
                current_stays=True if was_current else None,
            )
        )  # fmt: skip
    return rows


def _layers(run: str, night: dt.date) -> list[dict[str, Any]]:
    common = {"run_id": run, "night": night, "workload": "resnet18", "recipe": "static-int8"}
    return [
        common | {
            "module": module, "type": kind, "parameters": 1000, "quantized": sqnr is not None, "sqnr_db": sqnr,
            "sensitivity_rank": rank, "reason": None if sqnr else "kept float on request",
        }
        for module, kind, sqnr, rank in (
            ("conv1", "Conv2d", 21.5, 1), ("layer1.0.conv1", "Conv2d", 34.0, 2), ("fc", "Linear", None, None)
        )
    ]  # fmt: skip
