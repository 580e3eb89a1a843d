"""A store with a story: promotions, an upgrade, an alarm, failures and a busy machine in three workloads."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

from storage.results.catalog import refresh
from storage.results.writer import ResultsStore
from tests.storage.results.rows import at, baseline, measurement, promotion, run_row

FIRST = dt.date(2026, 3, 1)
NIGHTS = 16
LAST = FIRST + dt.timedelta(days=NIGHTS - 1)
UPGRADED, SLOWER, REWRITTEN = 5, 12, 9
ERROR = "RuntimeError: the quantized LSTM does not export <b>\n  File model.py, line 3\n  see the log"
RULES = json.dumps(
    [
        {"name": "max_quality_drop", "bound": 0.5, "seen": 0.2, "outcome": "passed", "note": "top1, higher is better"},
        {"name": "min_speedup", "bound": 1.05, "seen": 1.4, "outcome": "passed", "note": "from 1.4 to 1.6"},
    ]
)


def fill(root: Path, nights: int = NIGHTS) -> None:
    """Write the nights, one run each, and the catalog."""
    store = ResultsStore(root)
    for index in range(nights):
        night = FIRST + dt.timedelta(days=index)
        run = f"run-{index:02}"
        rows = [*_words(run, night, index), *_images(run, night, index), *_busy(run, night)]
        store.append("measurements", rows, run, at(night))
        store.append("promotions", _decided(run, night, index), run, at(night))
        message = "12 candidates of 3 workloads measured, 2 failed, 1 promoted, 1 kept"
        finished = run_row(run, night, status="failed", message=message, evidence=evidence(), versions=VERSIONS)
        store.append("runs", [finished], run, at(night, 4))
    refresh(root)


VERSIONS = json.dumps({"python": "3.11.7", "torch": "2.15.0"})


def evidence(*, waiting: float = 0.31, stolen: float = 0.04) -> str:
    """A run's evidence: 100 s of benchmark on two processors; the shares are those of the workload `busy`."""

    def state(at_s: float, waited: float, steal: float) -> str:
        pressure = {"cpu": {"some_avg10": 1.0, "some_total_us": round(waited * 1e6)}}
        load = [2.4, 2.0, 1.5]
        machine = {"processors": 2, "cpu": "A processor"}
        return json.dumps(
            {"at_s": at_s, "machine": machine, "load_average": load, "steal_s": steal, "pressure": pressure}
        )

    shares = {"word-lm": (0.02, 0.0), "resnet18": (0.03, 0.001), "busy": (waiting, stolen)}
    return json.dumps(
        [
            {"workload": name, "before": state(0, 50, 7), "after": state(100, 50 + 100 * w, 7 + 200 * s)}
            for name, (w, s) in shares.items()
        ]
    )


def _words(run: str, night: dt.date, index: int) -> list[dict[str, Any]]:
    """Seven candidates; one became 15% slower and ``dynamic/torchscript`` was promoted over ``dynamic/eager``."""
    torch = "2.14.0" if index < UPGRADED else "2.15.0"
    common: dict[str, Any] = {
        "machine": "m" * 64,
        "environment": json.dumps({"kernel": "Linux 6.1", "python": "3.11.7", "torch": torch}),
        "data_digest": "d" * 64,
        "aa_ratio": 1.001,
        "aa_low": 0.98,
        "aa_high": 1.02,
    }
    wobble = 1 + 0.01 * ((index * 7) % 5 - 2) / 2
    slow = {"latency_s": 0.0009, "latency_q25_s": 0.00088, "latency_q75_s": 0.00094}
    rows = [baseline(run, night, size_bytes=440_000, **slow, **common)]
    speeds = {
        ("dynamic", "eager"): 1.9, ("dynamic", "torchscript"): 2.4, ("dynamic-embedding8", "torchscript"): 2.2,
        ("dynamic", "onnxruntime"): 4.1, ("static", "openvino"): 4.9, ("float", "onnxruntime"): 1.8,
    }  # fmt: skip
    for position, ((recipe, runtime), speed) in enumerate(speeds.items()):
        if index >= UPGRADED and runtime == "torchscript":
            speed *= 1.12
        if index >= SLOWER and runtime == "onnxruntime" and recipe == "dynamic":
            speed *= 0.85
        drop = 0.002 * position
        rows.append(
            measurement(
                run, night, recipe=recipe, runtime=runtime, speedup=speed * wobble, latency_s=0.0009 / speed,
                latency_q25_s=0.00087 / speed, latency_q75_s=0.00095 / speed, size_bytes=1000 * (400 - 40 * position),
                quality_difference=drop, quality_difference_low=drop - 0.001, quality_difference_high=drop + 0.002,
                artifact_digest=f"{position}" * 64, over_current=speed / 2.4, over_current_low=speed / 2.5,
                over_current_high=speed / 2.3, best_float="float/onnxruntime", over_best_float=speed / 1.8,
                over_best_float_low=speed / 1.9, over_best_float_high=speed / 1.7,
                recipe_digest=("b" if index < REWRITTEN else "c") * 64,
                method="none" if recipe == "float" else "dynamic", quality=4 + drop, **common,
            )
        )  # fmt: skip
    return rows


def _images(run: str, night: dt.date, index: int) -> list[dict[str, Any]]:
    """Large and small differences in points; two runtimes fail with the same error."""
    common: dict[str, Any] = {
        "workload": "resnet18", "quality_metric": "top1", "higher_is_better": True, "aa_low": 0.99, "aa_high": 1.03,
        "machine": "m" * 64, "latency_s": 0.012, "latency_q25_s": 0.0117, "latency_q75_s": 0.0128,
    }  # fmt: skip
    quality = {
        "quality": 91.3, "quality_difference": -0.21, "quality_difference_low": -0.4, "quality_difference_high": -0.05,
    }  # fmt: skip
    slow = {"latency_s": 0.049, "latency_q25_s": 0.048, "latency_q75_s": 0.051}
    failed = {"status": "failed", "stage": "quantize", "error": ERROR} | dict.fromkeys(
        ("speedup", "quality", "quality_difference", "quality_difference_low", "quality_difference_high", "size_bytes",
         "size_ratio", "latency_s", "latency_q25_s", "latency_q75_s", "peak_rss_bytes")
    )  # fmt: skip
    return [
        baseline(run, night, size_bytes=46_800_000, quality=91.5, **common | slow),
        measurement(run, night, recipe="static", size_bytes=11_800_000, speedup=4.1 + 0.02 * (index % 3),
                    artifact_digest="s" * 64, **quality, **common),
        measurement(run, night, recipe="static", runtime="torchscript", size_bytes=11_900_000, speedup=6.2,
                    cold_speedup=3.47, cold_speedup_low=3.31, cold_speedup_high=3.63, cold_latency_s=0.0214,
                    caches="warm", artifact_digest="t" * 64, **quality, **common),
        *(measurement(run, night, recipe="qat", runtime=runtime, **common | failed)
          for runtime in ("onnxruntime", "torchscript")),
    ]  # fmt: skip


def _busy(run: str, night: dt.date) -> list[dict[str, Any]]:
    """A workload on a machine where nothing can be decided; its quality has no interval."""
    common: dict[str, Any] = {
        "workload": "busy", "aa_low": 0.8, "aa_high": 1.31, "verdict": "inconclusive", "quality_difference_low": None,
        "quality_difference_high": None, "quality_metric": "difference_percent",
    }  # fmt: skip
    return [
        baseline(run, night, **common),
        measurement(run, night, recipe="dynamic", **common | {"speedup_low": 0.8, "speedup_high": 2.4, "speedup": 1.4}),
    ]


def _decided(run: str, night: dt.date, index: int) -> list[dict[str, Any]]:
    promoted, current = ("torchscript", "eager") if index == UPGRADED + 2 else ("eager", "eager")
    if index > UPGRADED + 2:
        promoted = current = "torchscript"
    is_new = index in (0, UPGRADED + 2)
    stays = not is_new
    why = "it passes, and no challenger is decidedly better"
    standing = {
        "current_version": None if index == 0 else f"2026-03-01-{current}",
        "current_stays": None if index == 0 else stays,
        "current_reason": None
        if index == 0
        else why
        if stays
        else "dynamic/torchscript replaces it: 1.4 times as fast",
    }
    version = f"2026-03-01-{promoted}"
    reason = f"stays: {why}" if stays else "fastest of 5 passing candidates"
    digest = ("1" if promoted == "torchscript" else "0") * 64
    rows = [
        promotion(
            run, night, runtime=promoted, bundle_version=version, reason=reason, artifact_digest=digest, **standing
        )
    ]
    passes = "passes all 2 rules; the current bundle stays: this candidate is 0.95 to 1.04 times as fast"
    rows += [
        promotion(run, night, recipe=recipe, runtime=runtime, decision="pass", reason=passes, **standing)
        for recipe, runtime in (("dynamic-embedding8", "torchscript"), ("static", "openvino"))
    ]
    held = "min_speedup requires 1.05, but the measured value is uncertain (interval: 0.8 to 2.4)"
    newest = index == NIGHTS - 1
    rows += [
        promotion(run, night, workload="busy", decision="hold", reason=held, rules=RULES),
        promotion(run, night, workload="resnet18", recipe="static", decision="pass", rules=RULES,
                  reason="passes all 2 rules; eager is never deployed"),
        promotion(run, night, workload="resnet18", recipe="static", runtime="torchscript", rules=RULES,
                  decision="promote" if newest else "hold", bundle_version=f"{night}-new" if newest else None,
                  reason="fastest of 1 passing candidate" if newest else held),
        *(promotion(run, night, workload="resnet18", recipe="qat", runtime=runtime, decision="reject",
                    reason="failed in quantize: RuntimeError: the quantized LSTM does not export")
          for runtime in ("onnxruntime", "torchscript")),
    ]  # fmt: skip
    return rows
