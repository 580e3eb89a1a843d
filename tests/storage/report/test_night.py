from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from storage.report.night import Condition, bounds_of, candidates_of, conditions_of, outcomes_of
from storage.results import Row
from storage.results.query import open_catalog
from tests.storage.report.nights import FIRST, LAST, evidence


def test_the_filled_store_has_one_of_each(filled: Path) -> None:
    with open_catalog(filled) as connection:
        found, first = outcomes_of(connection, LAST), outcomes_of(connection, FIRST)
    assert {name: row["outcome"] for name, row in found.items()} == {
        "word-lm": "kept",
        "resnet18": "promoted",
        "busy": "held",
    }
    assert first["word-lm"]["outcome"] == "promoted"


def test_the_best_come_first_and_the_failed_last(filled: Path) -> None:
    with open_catalog(filled) as connection:
        rows = candidates_of(connection, LAST)["resnet18"]
    assert [row["name"] for row in rows][:3] == ["static/torchscript", "static/eager", "float/eager"]
    assert {row["status"] for row in rows[3:]} == {"failed"}


def test_bounds_are_in_the_metrics_unit() -> None:
    def rule(name: str, bound: float | str, note: str = "") -> dict[str, Any]:
        return {"name": name, "bound": bound, "note": note}

    shares = [rule("max_quality_drop", 0.01, "share of the baseline's loss"), rule("min_speedup", 1.05)]
    row = {"rules": json.dumps([*shares, rule("status", "ok")]), "baseline_quality": -4.0}
    assert bounds_of([row]) == {"max_quality_drop": 0.04, "min_speedup": 1.05}
    absolute = {"rules": json.dumps([rule("max_quality_drop", 0.5, "top1")]), "baseline_quality": 90.0}
    assert bounds_of([{"rules": None, "baseline_quality": None}, absolute]) == {"max_quality_drop": 0.5}


def row(**changes: Any) -> Row:
    return {"became": "pass", "resolution": 0.02} | changes


def of_busy(filled: Path, recorded: Sequence[str | None], *rows: Row) -> Condition:
    with open_catalog(filled) as connection:
        return conditions_of(connection, [{"evidence": each} for each in recorded], {"busy": rows})[0]


def test_what_was_recorded_becomes_shares_of_the_benchmarks_time(filled: Path) -> None:
    found = of_busy(filled, [evidence(waiting=0.31, stolen=0.04)], row(), row(became="hold", resolution=0.2))
    assert (found.load, found.processors, found.undecided) == (2.4, 2, 1)
    assert (found.waiting, found.stolen, found.resolution) == pytest.approx((0.31, 0.04, 0.2))
    assert len(found.troubles) == 3
    assert found.troubles[1] == "tasks waited for a processor in 31% of the time"


def test_a_quiet_machine_is_no_trouble(filled: Path) -> None:
    found = of_busy(filled, [evidence(waiting=0.05, stolen=0.001)], row())
    assert (found.troubles, found.is_known) == ((), True)


@pytest.mark.slow
def test_a_coarse_benchmark_is_trouble_whatever_the_machine_says(filled: Path) -> None:
    found = of_busy(filled, [evidence(waiting=0, stolen=0)], row(resolution=0.31))
    assert found.troubles == ("the same model against itself was up to 31% off",)


@pytest.mark.parametrize("recorded", [None, "[]"])
def test_what_was_not_recorded_is_no_trouble(filled: Path, recorded: str | None) -> None:
    found = of_busy(filled, [recorded], row(resolution=None))
    assert found == Condition("busy")
    assert not found.is_known


def test_of_several_runs_the_last_ones_evidence_counts(filled: Path) -> None:
    recorded = [evidence(waiting=0.9), evidence(waiting=0.1)]
    assert of_busy(filled, recorded, row()).waiting == pytest.approx(0.1)
