from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from storage.results.history import Baseline, last_baselines
from storage.root import StoreRoot
from tests.storage.results.rows import baseline, measurement, write_night

NIGHT = dt.date(2026, 3, 1)
FLOATS = {"word-lm": ["float/torchscript", "float/openvino"]}


def float_row(runtime: str, low: float, **changes: Any) -> dict[str, Any]:
    bounds = {"speedup": low + 0.1, "speedup_bound_low": low, "speedup_bound_high": low + 0.2}
    return measurement("a", NIGHT, recipe="float", method="none", runtime=runtime, **bounds | changes)


def found(store: Path, *rows: dict[str, Any], reason: str | None = "it was the fastest") -> Baseline | None:
    own = baseline("a", NIGHT, runtime="torchscript", baseline="float/torchscript", baseline_reason=reason)
    write_night(store, NIGHT, [own, *rows], "a")
    return last_baselines(StoreRoot.of(store), FLOATS).get("word-lm")


def test_the_baseline_stays_with_its_reason_until_another_float_is_decidedly_faster(tmp_path: Path) -> None:
    assert found(tmp_path, float_row("openvino", 0.98)) == Baseline("float/torchscript", "it was the fastest")


def test_a_decidedly_faster_float_that_can_be_deployed_is_the_next_baseline(tmp_path: Path) -> None:
    new = found(tmp_path, float_row("openvino", 1.2), float_row("eager", 9.0), float_row("onnxruntime", 9.0))
    reason = "on 2026-03-01, it was at least 1.2 times as fast as float/torchscript, the baseline until then"
    assert new == Baseline("float/openvino", reason, replaces="float/torchscript")


def test_a_baseline_that_the_file_named_before_stays_too(tmp_path: Path) -> None:
    assert found(tmp_path, reason=None) == Baseline("float/torchscript", "it was the baseline on 2026-03-01")


def test_a_store_without_results_and_a_baseline_that_left_the_file_have_no_baseline(tmp_path: Path) -> None:
    assert last_baselines(StoreRoot.of(tmp_path), FLOATS) == {}
    found(tmp_path)
    assert last_baselines(StoreRoot.of(tmp_path), {"word-lm": ["float/openvino"]}) == {}


def test_the_last_run_that_measured_a_baseline_counts(tmp_path: Path) -> None:
    found(tmp_path)
    later = NIGHT + dt.timedelta(days=1)
    write_night(tmp_path, later, [measurement("b", later, baseline="float/torchscript")], "b")
    assert last_baselines(StoreRoot.of(tmp_path), FLOATS)["word-lm"].name == "float/torchscript"
