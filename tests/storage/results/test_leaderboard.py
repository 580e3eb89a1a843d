from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from storage.results.catalog import refresh
from storage.results.query import run_query
from storage.results.writer import ResultsStore
from tests.storage.results.rows import at, baseline, measurement, promotion, write_night

NIGHT = dt.date(2026, 3, 1)


def shown(store: Path, *rows: dict[str, Any], **decided: Any) -> list[dict[str, Any]]:
    """The leaderboard of a night with these rows beside the baseline, where the gate decided on ``dynamic/eager``."""
    write_night(store, NIGHT, [baseline("run", NIGHT), *rows], "run")
    ResultsStore(store).append("promotions", [promotion("run", NIGHT, **decided)], "run", at(NIGHT))
    refresh(store)
    found: list[dict[str, Any]] = run_query(store, "from leaderboard").to_pylist()
    return found


def test_latency_and_speedup_of_a_row_agree(tmp_path: Path) -> None:
    # Seen: the median over blocks is lower than the baseline's, while in paired launches the candidate is slower.
    slower = {"baseline_latency_s": 981e-6, "latency_s": 976e-6, "speedup": 0.94}
    row = shown(tmp_path, measurement("run", NIGHT, **slower))[0]
    assert (row["speedup"], row["latency_ms"]) == (0.94, 1.04)
    assert run_query(tmp_path, "select latency_s from latest where recipe = 'dynamic'").to_pylist() == [
        {"latency_s": 976e-6}
    ]


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.00123456, 0.00123), (0.35062, 0.351), (5.07933, 5.08), (12.345, 12.3), (123.4, 123.0), (1234.4, 1234.0)],
)
@pytest.mark.slow
def test_ratios_are_rounded_to_three_digits(tmp_path: Path, value: float, written: float) -> None:
    difference = {"quality_difference": -value, "size_ratio": value}
    row = shown(tmp_path, measurement("run", NIGHT, speedup=value, **difference))[0]
    assert (row["speedup"], row["size_ratio"], row["quality_difference"]) == (written, written, -written)


@pytest.mark.parametrize(
    ("low", "high", "text"), [(4.4636, 5.78, "4.46–5.78"), (0.275, 0.4473, "0.28–0.45"), (9.81, 11.52, "9.8–11.5")]
)
def test_the_interval_is_text(tmp_path: Path, low: float, high: float, text: str) -> None:
    found = shown(tmp_path, measurement("run", NIGHT, speedup_low=low, speedup_high=high))
    assert [row["interval"] for row in found] == [text, None]


@pytest.mark.parametrize(
    ("decided", "decision", "why"),
    [
        ({"reason": "fastest of those that pass"}, "promote", "fastest of those that pass"),
        ({"reason": "stays: no challenger passes", "current_stays": True}, "stays", "no challenger passes"),
        ({"reason": "replaces it", "current_stays": False}, "promote", "replaces it"),
        (
            {"decision": "pass", "reason": "passes all 12 rules; eager is never deployed"},
            "pass",
            "eager is never deployed",
        ),
        (
            {
                "decision": "hold",
                "reason": "min_speedup requires 2, but the measured value is uncertain",
                "current_stays": True,
            },
            "hold",
            "min_speedup requires 2, but the measured value is uncertain",
        ),
    ],
)
@pytest.mark.slow
def test_the_decision_and_its_reason(tmp_path: Path, decided: dict[str, Any], decision: str, why: str) -> None:
    row = shown(tmp_path, measurement("run", NIGHT), **decided)[0]
    assert (row["candidate"], row["decision"], row["why"]) == ("dynamic/eager", decision, why)


@pytest.mark.slow
def test_a_row_that_was_not_judged_has_a_reason(tmp_path: Path) -> None:
    failed = {"status": "failed", "stage": "build", "error": "no room\nFree some.", "speedup": None, "latency_s": None}
    found = shown(tmp_path, measurement("run", NIGHT), measurement("run", NIGHT, recipe="broken", **failed))
    assert [(row["candidate"], row["decision"], row["why"]) for row in found[1:]] == [
        ("float/eager", "baseline", None),
        ("broken/eager", "failed", "build: no room"),
    ]
    assert found[2]["speedup"] is found[2]["interval"] is found[2]["latency_ms"] is None
