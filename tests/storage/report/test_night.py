from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from storage.report.night import Outcome, bounds_of, candidates_of, outcomes_of, unbeaten
from storage.results.catalog import refresh
from storage.results.query import open_catalog
from storage.results.writer import ResultsStore
from tests.storage.report.nights import FIRST, LAST
from tests.storage.results.rows import at, baseline, measurement, promotion, write_night

NIGHT = dt.date(2026, 3, 1)
BEFORE = {"incumbent_version": "v1", "incumbent_stays": True, "incumbent_reason": "no challenger passes"}


def outcome(root: Path, decided: list[dict[str, Any]], *, before: list[dict[str, Any]] | None = None) -> Outcome:
    """What became of word-lm on the night after `NIGHT`, whose promotions are `before`."""
    after = NIGHT + dt.timedelta(days=1)
    for night, rows in ((NIGHT, before or []), (after, decided)):
        run = f"run-{night}"
        write_night(root, night, [baseline(run, night), measurement(run, night, artifact_digest="a" * 64)], run)
        if rows:
            made = [promotion(run, night, **row) for row in rows]
            ResultsStore(root).append("promotions", made, run, at(night))
    refresh(root)
    with open_catalog(root) as connection:
        return outcomes_of(connection, after, candidates_of(connection, after))["word-lm"]


def test_a_new_bundle_is_promoted(tmp_path: Path) -> None:
    found = outcome(tmp_path, [{"bundle_version": "v2", **BEFORE, "incumbent_stays": False}])
    assert (found.status, found.candidate, found.version) == ("promoted", "dynamic/eager", "v2")
    assert (found.replaced, found.since, found.warning) == ("v1", dt.date(2026, 3, 2), "")


@pytest.mark.slow
def test_an_incumbent_that_stays_is_kept_with_its_reason_and_age(tmp_path: Path) -> None:
    found = outcome(tmp_path, [{"decision": "hold", **BEFORE}], before=[{"bundle_version": "v1"}])
    assert (found.status, found.candidate, found.since) == ("kept", "dynamic/eager", NIGHT)
    assert found.reason == "no challenger passes"
    assert found.held == (("dynamic/eager", "fastest of those that pass"),)


def test_a_bundle_promoted_again_by_an_earlier_version_is_kept(tmp_path: Path) -> None:
    found = outcome(tmp_path, [{"bundle_version": "v1"}], before=[{"bundle_version": "v1"}])
    assert (found.status, found.since) == ("kept", NIGHT)


def test_an_earlier_bundle_that_is_current_again_is_promoted(tmp_path: Path) -> None:
    replaced = BEFORE | {"incumbent_version": "v2", "incumbent_stays": False}
    found = outcome(tmp_path, [{"bundle_version": "v1", **replaced}], before=[{"bundle_version": "v1"}])
    assert (found.status, found.version, found.replaced) == ("promoted", "v1", "v2")


def test_a_current_bundle_that_is_unknown_is_warned_of_and_not_called_none(tmp_path: Path) -> None:
    reason = "it is unknown (the worker was lost), so nothing is promoted"
    kept = BEFORE | {"incumbent_reason": reason}
    found = outcome(tmp_path / "known", [{"decision": "hold", **kept}], before=[{"bundle_version": "v1"}])
    assert (found.status, found.version, found.reason) == ("kept", "v1", reason)
    assert found.warning == "Nobody knows tonight whether it is still good."
    found = outcome(tmp_path / "unknown", [{"decision": "hold", "incumbent_reason": reason}])
    assert (found.status, found.version) == ("held", "")
    assert "which bundle is current could not be looked up" in found.reason


@pytest.mark.slow
def test_a_kept_bundle_that_the_gate_rejects_is_warned_of(tmp_path: Path) -> None:
    rejected = [{"decision": "reject", **BEFORE}]
    made = {"bundle_version": "v1", "artifact_digest": "a" * 64}
    assert "rejects it" in outcome(tmp_path / "same", rejected, before=[made]).warning
    assert not outcome(tmp_path / "other", rejected, before=[made | {"artifact_digest": "b" * 64}]).warning


def test_a_promotion_without_a_bundle_is_warned_of(tmp_path: Path) -> None:
    assert "No bundle" in outcome(tmp_path, [{}]).warning


@pytest.mark.parametrize(("decision", "status"), [("hold", "held"), ("reject", "nothing passed")])
def test_without_an_incumbent_it_says_whether_anything_is_open(decision: str, status: str, tmp_path: Path) -> None:
    assert outcome(tmp_path, [{"decision": decision}]).status == status


def test_a_night_without_decisions_is_not_judged(tmp_path: Path) -> None:
    assert outcome(tmp_path, []).status == "not judged"


@pytest.mark.slow
def test_the_filled_store_has_one_of_each(filled: Path) -> None:
    with open_catalog(filled) as connection:
        found = outcomes_of(connection, LAST, candidates_of(connection, LAST))
        first = outcomes_of(connection, FIRST, candidates_of(connection, FIRST))
    assert {name: each.status for name, each in found.items()} == {
        "word-lm": "kept",
        "resnet18": "promoted",
        "busy": "held",
    }
    assert first["word-lm"].status == "promoted"


@pytest.mark.slow
def test_the_best_come_first_and_the_failed_last(filled: Path) -> None:
    with open_catalog(filled) as connection:
        rows = candidates_of(connection, LAST)["resnet18"]
    assert [row["name"] for row in rows][:2] == ["static/torchscript", "static/eager"]
    assert {row["status"] for row in rows[2:4]} == {"failed"}


def test_a_current_bundle_that_is_none_of_the_candidates_is_named_apart(tmp_path: Path) -> None:
    run = f"run-{NIGHT}"
    write_night(tmp_path, NIGHT, [measurement(run, NIGHT), measurement(run, NIGHT, setting="incumbent")])
    ResultsStore(tmp_path).append("promotions", [promotion(run, NIGHT, decision="reject")], run, at(NIGHT))
    refresh(tmp_path)
    with open_catalog(tmp_path) as connection:
        rows = candidates_of(connection, NIGHT)["word-lm"]
    decided = [(row["name"], row["decision"]) for row in rows]
    assert decided == [("current bundle dynamic/eager", None), ("dynamic/eager", "reject")]


def test_bounds_are_in_the_metrics_unit() -> None:
    def rule(name: str, bound: float | str, note: str = "") -> dict[str, Any]:
        return {"name": name, "bound": bound, "note": note}

    shares = [rule("max_quality_drop", 0.01, "share of the baseline's loss"), rule("min_speedup", 1.05)]
    row = {"rules": json.dumps([*shares, rule("status", "ok")]), "baseline_quality": -4.0}
    assert bounds_of([row]) == {"max_quality_drop": 0.04, "min_speedup": 1.05}
    absolute = {"rules": json.dumps([rule("max_quality_drop", 0.5, "top1")]), "baseline_quality": 90.0}
    assert bounds_of([{"rules": None, "baseline_quality": None}, absolute]) == {"max_quality_drop": 0.5}


@pytest.mark.slow
def test_only_what_nothing_beats_at_everything_is_unbeaten() -> None:
    def row(name: str, size: int, speed: float, quality: float, **changes: Any) -> dict[str, Any]:
        numbers = {"size_bytes": size, "shown_speedup": speed, "quality": quality}
        return {"name": name, "status": "ok", "higher_is_better": False} | numbers | changes

    rows = [
        row("small", 1, 2.0, 4.2),
        row("fast", 3, 3.0, 4.0),
        row("beaten", 3, 2.9, 4.0),
        row("twin", 3, 3.0, 4.0),
        row("failed", 0, 9.0, 1.0, status="failed"),
    ]
    assert unbeaten(rows) == ["small", "fast", "twin"]
