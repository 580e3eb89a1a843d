from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from storage.results.catalog import refresh
from storage.results.query import run_query
from storage.results.writer import ResultsStore
from tests.storage.report.nights import evidence
from tests.storage.results.rows import at, baseline, measurement, promotion, run_row, write_night

pytestmark = pytest.mark.slow

FIRST = dt.date(2026, 3, 1)


def ask(store: Path, sql: str) -> list[dict[str, Any]]:
    refresh(store)
    rows: list[dict[str, Any]] = run_query(store, sql).to_pylist()
    return rows


def decide(store: Path, run: str, night: dt.date, **decisions: str) -> None:
    rows = [promotion(run, night, recipe=recipe, decision=decision) for recipe, decision in decisions.items()]
    ResultsStore(store).append("promotions", rows, run, at(night))


def test_a_run_of_some_recipes_replaces_only_those_in_latest(tmp_path: Path) -> None:
    full = [
        baseline("full", FIRST),
        measurement("full", FIRST),
        measurement("full", FIRST, setting="a/a"),
        measurement("full", FIRST, recipe="other"),
    ]
    write_night(tmp_path, FIRST, full, "full")
    write_night(tmp_path, FIRST, [measurement("narrow", FIRST, measured_at=at(FIRST, 9))], "narrow")
    found = ask(tmp_path, "select recipe, setting, run_id from latest")
    assert [tuple(row.values()) for row in found] == [
        (
            "dynamic",
            "primary",
            "narrow",
        ),  # all of its rows are the last run's: what that did not measure is not mixed in
        ("float", "primary", "full"),
        ("other", "primary", "full"),
    ]


def test_a_run_of_some_recipes_leaves_the_others_in_the_leaderboard_with_their_own_decisions(tmp_path: Path) -> None:
    full = [baseline("full", FIRST), measurement("full", FIRST), measurement("full", FIRST, recipe="other")]
    later = {"measured_at": at(FIRST, 9)}
    narrow = [baseline("narrow", FIRST, **later), measurement("narrow", FIRST, speedup=3.0, **later)]
    write_night(tmp_path, FIRST, full, "full")
    write_night(tmp_path, FIRST, narrow, "narrow")
    decide(tmp_path, "full", FIRST, dynamic="reject", other="pass")
    decide(tmp_path, "narrow", FIRST, dynamic="promote")
    sql = "select rank, recipe, deciding_speedup, decision, run_id from outcomes where setting = 'primary'"
    found = ask(tmp_path, sql)
    assert [tuple(row.values()) for row in found] == [
        (1, "dynamic", 3.0, "promote", "narrow"),
        (2, "other", 2.0, "pass", "full"),
        (3, "float", 1.0, None, "narrow"),
    ]
    assert {row["recipe"] for row in ask(tmp_path, "from pareto")} == {"dynamic", "float"}


def test_the_best_passing_candidate_is_first_and_the_failed_last(tmp_path: Path) -> None:
    rows = [
        baseline("a", FIRST),
        measurement("a", FIRST, recipe="fast-but-bad", speedup=9.0),
        measurement("a", FIRST, recipe="good", speedup=2.0),
        measurement("a", FIRST, recipe="better", speedup=3.0),
        measurement("a", FIRST, recipe="broken", status="failed", speedup=None, error="no"),
    ]
    write_night(tmp_path, FIRST, rows, "a")
    decide(tmp_path, "a", FIRST, better="promote", good="pass", **{"fast-but-bad": "reject"})
    ranked = ask(tmp_path, "select rank, recipe, passes from outcomes where setting = 'primary'")
    assert [row["recipe"] for row in ranked] == ["better", "good", "fast-but-bad", "float", "broken"]
    assert [row["passes"] for row in ranked] == [True, True, False, False, False]
    assert [row["rank"] for row in ranked] == [1, 2, 3, 4, 5]


def test_a_workload_that_is_decided_with_cold_caches_has_its_outcomes_by_those(tmp_path: Path) -> None:
    def row(recipe: str, warm: float, cold: float, **changes: Any) -> dict[str, Any]:
        ends = {"cold_speedup": cold, "cold_speedup_low": cold, "cold_speedup_high": cold, "cold_latency_s": 1.0}
        return measurement("a", FIRST, recipe=recipe, caches="cold", speedup=warm, **ends | changes)

    float_ = {"method": "none", "quality": 4.0, "size_bytes": 1000}
    aa = {"aa_low": 0.99, "aa_high": 1.01, "cold_aa_low": 0.7, "cold_aa_high": 1.1}
    rows = [row("float-a", 9.0, 2.0, **float_), row("float-b", 1.0, 4.0, **float_), row("int8", 8.0, 6.0, **aa)]
    write_night(tmp_path, FIRST, rows, "a")
    found = {row["candidate"]: row for row in ask(tmp_path, "from outcomes")}
    assert [row["rank"] for row in found.values()] == [1, 2, 3]
    assert list(found) == ["int8/eager", "float-b/eager", "float-a/eager"]
    int8 = found["int8/eager"]
    assert (int8["deciding_speedup"], int8["deciding_latency_s"]) == (6.0, 1.0)
    assert int8["resolution"] == pytest.approx(0.3)
    assert [name for name, row in found.items() if row["unbeaten"]] == ["int8/eager", "float-b/eager"]


def test_the_machines_condition_is_there_for_each_benchmark(tmp_path: Path) -> None:
    write_night(tmp_path, FIRST)
    row = run_row("b", FIRST, evidence=evidence(waiting=0.31, stolen=0.04))
    ResultsStore(tmp_path).append("runs", [row], "b", at(FIRST))
    found = {row["workload"]: row for row in ask(tmp_path, "from conditions")}
    assert found["busy"]["troubles"] == ["waiting", "stolen"]
    assert found["busy"]["stolen"] == pytest.approx(0.04)
    assert found["word-lm"]["troubles"] == []


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_pareto_drops_candidates_that_another_one_beats_in_everything(tmp_path: Path, higher_is_better: bool) -> None:
    def candidate(recipe: str, size: int, speedup: float, goodness: float) -> dict[str, Any]:
        quality = goodness if higher_is_better else -goodness
        changes = {"size_bytes": size, "speedup": speedup, "quality": quality, "higher_is_better": higher_is_better}
        return measurement("a", FIRST, recipe=recipe, **changes)

    rows = [
        candidate("small", 100, 1.0, 1.0),
        candidate("fast", 200, 3.0, 1.0),
        candidate("good", 200, 1.0, 3.0),
        candidate("worse-than-fast", 300, 2.0, 1.0),
        candidate("same-as-small", 100, 1.0, 1.0),
    ]
    write_night(tmp_path, FIRST, rows, "a")
    kept = {row["recipe"] for row in ask(tmp_path, "from pareto")}
    assert kept == {"small", "fast", "good", "same-as-small"}


def test_a_failure_that_several_candidates_share_is_listed_once_in_full(tmp_path: Path) -> None:
    error = "it does not fit\n  twenty lines"
    rows = [
        measurement("a", FIRST, recipe=recipe, status="failed", stage="checkpoint", error=error, speedup=None)
        for recipe in ("int8", "float")
    ]
    write_night(tmp_path, FIRST, rows, "a")
    found = ask(tmp_path, "select recipe, error from failures")
    assert found == [{"recipe": "float", "error": error}, {"recipe": "int8", "error": "it does not fit"}]


def test_samples_are_the_blocks_one_row_each(tmp_path: Path) -> None:
    write_night(
        tmp_path, FIRST, [measurement("a", FIRST), measurement("a", FIRST, recipe="none-taken", block_s=None)], "a"
    )
    found = ask(tmp_path, "select launch, round, seconds from samples")
    assert found == [
        {"launch": 0, "round": 0, "seconds": 0.1},
        {"launch": 0, "round": 1, "seconds": 0.11},
        {"launch": 1, "round": 0, "seconds": 0.09},
    ]


def test_a_promoted_baseline_gives_the_gates_reason_and_any_other_baseline_why_it_is_the_baseline(
    tmp_path: Path,
) -> None:
    write_night(tmp_path, FIRST, [baseline("a", FIRST, baseline_reason="the fastest of two")], "a")
    assert ask(tmp_path, "select why from outcomes") == [{"why": "the fastest of two"}]
    decide(tmp_path, "a", FIRST, float="promote")
    assert [row["why"] for row in ask(tmp_path, "select why from outcomes")] != ["the fastest of two"]
