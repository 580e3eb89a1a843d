"""Rows for the tests: valid ones, of which each test changes what it is about."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.results.layout import PLACEHOLDER, sealed
from storage.results.writer import ResultsStore

FINGERPRINT, MACHINE = "f" * 64, "m" * 64


def at(night: dt.date, hour: int = 3) -> dt.datetime:
    return dt.datetime.combine(night, dt.time(hour), dt.UTC)


def measurement(run_id: str, night: dt.date, **changes: Any) -> dict[str, Any]:
    speedup = changes.get("speedup", 2.0)
    row = {
        "run_id": run_id,
        "night": night,
        "workload": "word-lm",
        "recipe": "dynamic",
        "runtime": "eager",
        "setting": "primary",
        "threads": 1,
        "batch_size": 1,
        "status": "ok",
        "measured_at": at(night),
        "profile": "standard",
        "method": "dynamic",
        "baseline": "float/eager",
        "is_baseline": False,
        "caches": "warm",
        "fingerprint": FINGERPRINT,
        "machine": MACHINE,
        "size_bytes": 400,
        "baseline_size_bytes": 1000,
        "size_ratio": 2.5,
        "quality_metric": "loss",
        "quality": 4.1,
        "baseline_quality": 4.0,
        "quality_difference": 0.1,
        "quality_difference_low": 0.09,
        "quality_difference_high": 0.11,
        "higher_is_better": False,
        "metrics": {"loss": 4.1, "perplexity": 60.3},
        "latency_s": 0.1,
        "latency_q25_s": 0.09,
        "latency_q75_s": 0.11,
        "baseline_latency_s": 0.2,
        "speedup": speedup,
        "speedup_low": speedup and speedup * 0.99,
        "speedup_high": speedup and speedup * 1.01,
        "peak_rss_bytes": 5000,
        "verdict": "valid",
        "block_launch": [0, 0, 1],
        "block_round": [0, 1, 0],
        "block_s": [0.1, 0.11, 0.09],
    }
    return row | changes


def baseline(run_id: str, night: dt.date, **changes: Any) -> dict[str, Any]:
    plain = {
        "recipe": "float",
        "method": "none",
        "is_baseline": True,
        "speedup": 1.0,
        "size_bytes": 1000,
        "size_ratio": 1.0,
        "quality": 4.0,
        "quality_difference": 0.0,
        "quality_difference_low": None,
        "quality_difference_high": None,
    }
    return measurement(run_id, night, **(plain | changes))


def run_row(run_id: str, night: dt.date, **changes: Any) -> dict[str, Any]:
    row = {
        "run_id": run_id,
        "night": night,
        "started_at": at(night, 2),
        "finished_at": at(night, 4),
        "status": "completed",
        "profile": "standard",
        "workloads": 1,
        "candidates_ok": 2,
        "candidates_failed": 0,
        "fingerprint": FINGERPRINT,
        "host": "bench",
        "cpu": "A processor",
    }
    return row | changes


def promotion(run_id: str, night: dt.date, **changes: Any) -> dict[str, Any]:
    row = {
        "run_id": run_id,
        "night": night,
        "workload": "word-lm",
        "recipe": "dynamic",
        "runtime": "eager",
        "decision": "promote",
        "decided_at": at(night),
        "objective": "fastest",
        "rules": "[]",
        "reason": "fastest of those that pass",
    }
    return row | changes


def trial(run_id: str, night: dt.date, number: int = 1, **changes: Any) -> dict[str, Any]:
    row = {
        "run_id": run_id,
        "night": night,
        "workload": "word-lm",
        "trial": number,
        "recipe": f"static-{number}",
        "runtime": "onnxruntime",
        "method": "static",
        "settings": "{}",
        "origin": "space",
        "outcome": "passing",
        "split": "valid",
        "samples": 1024,
        "quality_drop": 0.1,
        "quality_drop_low": 0.05,
        "quality_drop_high": 0.15,
        "quality_unit": "absolute",
        "quality_bound": 0.5,
        "objective": "fastest",
        "size_bytes": 400,
        "speedup": 2.0,
        "speedup_low": 1.9,
        "speedup_high": 2.1,
        "launches": 2,
        "cost_s": 12.5,
        "is_known": False,
        "fingerprint": FINGERPRINT,
    }
    return row | changes


def write_night(root: Path | str, night: dt.date, rows: list[dict[str, Any]] | None = None, run_id: str = "") -> str:
    """Append one run with its rows (a baseline and a candidate by default); give its id."""
    run = run_id or f"run-{night}"
    store = ResultsStore(root)
    store.append("measurements", rows or [baseline(run, night), measurement(run, night)], run, at(night))
    store.append("runs", [run_row(run, night)], run, at(night, 4))
    return run


def rewrite(path: Path, rows: pa.Table) -> None:
    """Replace a results file by one with other columns or metadata, and a checksum that fits."""
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, rows.schema) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(PLACEHOLDER)
    path.write_bytes(sealed(buffer.getvalue()))
