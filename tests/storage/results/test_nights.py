from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from storage.results import Row
from storage.results.catalog import refresh
from storage.results.query import run_query
from storage.results.writer import ResultsStore
from tests.storage.results.rows import at, baseline, measurement, promotion, write_night

pytestmark = pytest.mark.slow

NIGHT = dt.date(2026, 3, 1)
AFTER = NIGHT + dt.timedelta(days=1)
BEFORE = {"current_version": "v1", "current_stays": True, "current_reason": "no challenger passes"}


def outcome(root: Path, decided: list[dict[str, Any]], *, before: list[dict[str, Any]] | None = None) -> Row:
    """Return what became of word-lm on the night after `NIGHT`, whose promotions are `before`."""
    for night, rows in ((NIGHT, before or []), (AFTER, decided)):
        run = f"run-{night}"
        write_night(root, night, [baseline(run, night), measurement(run, night, artifact_digest="a" * 64)], run)
        if rows:
            made = [promotion(run, night, **row) for row in rows]
            ResultsStore(root).append("promotions", made, run, at(night))
    refresh(root)
    (row,) = run_query(root, "from nights").to_pylist()
    return dict(row)


def test_a_new_bundle_is_promoted(tmp_path: Path) -> None:
    found = outcome(tmp_path, [{"bundle_version": "v2", **BEFORE, "current_stays": False}])
    assert (found["outcome"], found["candidate"], found["version"]) == ("promoted", "dynamic/eager", "v2")
    assert (found["replaced"], found["since"], found["warning"]) == ("v1", AFTER, None)


def test_a_bundle_that_stays_is_kept_with_its_reason_and_age(tmp_path: Path) -> None:
    found = outcome(tmp_path, [{"decision": "hold", **BEFORE}], before=[{"bundle_version": "v1"}])
    assert (found["outcome"], found["candidate"], found["since"]) == ("kept", "dynamic/eager", NIGHT)
    assert found["why"] == "no challenger passes"


def test_an_earlier_bundle_that_is_current_again_is_promoted(tmp_path: Path) -> None:
    replaced = BEFORE | {"current_version": "v2", "current_stays": False}
    found = outcome(tmp_path, [{"bundle_version": "v1", **replaced}], before=[{"bundle_version": "v1"}])
    assert (found["outcome"], found["version"], found["replaced"]) == ("promoted", "v1", "v2")


def test_an_unknown_current_bundle_causes_a_warning_and_is_not_called_none(tmp_path: Path) -> None:
    reason = "it is unknown (the worker was lost), so nothing is promoted"
    kept = BEFORE | {"current_reason": reason}
    found = outcome(tmp_path / "known", [{"decision": "hold", **kept}], before=[{"bundle_version": "v1"}])
    assert (found["outcome"], found["version"], found["why"]) == ("kept", "v1", reason)
    assert found["warning"] == "It is unknown tonight whether the bundle is still good."
    found = outcome(tmp_path / "unknown", [{"decision": "hold", "current_reason": reason}])
    assert (found["outcome"], found["version"]) == ("held", None)
    assert "the current bundle could not be looked up" in str(found["why"])


def test_a_kept_bundle_that_the_gate_rejects_causes_a_warning(tmp_path: Path) -> None:
    rejected = [{"decision": "reject", "artifact_digest": "a" * 64, **BEFORE}]
    made = {"bundle_version": "v1", "artifact_digest": "a" * 64}
    assert "rejects it" in str(outcome(tmp_path / "same", rejected, before=[made])["warning"])
    other = made | {"artifact_digest": "b" * 64}
    assert outcome(tmp_path / "other", rejected, before=[other])["warning"] is None


@pytest.mark.parametrize(("decision", "expected"), [("hold", "held"), ("reject", "nothing passed")])
def test_without_a_current_bundle_it_says_whether_anything_is_open(
    decision: str, expected: str, tmp_path: Path
) -> None:
    assert outcome(tmp_path, [{"decision": decision}])["outcome"] == expected


def test_the_last_run_of_a_night_decides(tmp_path: Path) -> None:
    for hour, decision in ((3, "hold"), (5, "reject")):
        run = f"run-{hour}"
        write_night(tmp_path, NIGHT, [measurement(run, NIGHT, measured_at=at(NIGHT, hour))], run)
        decided = promotion(run, NIGHT, decision=decision, decided_at=at(NIGHT, hour))
        ResultsStore(tmp_path).append("promotions", [decided], run, at(NIGHT))
    refresh(tmp_path)
    (row,) = run_query(tmp_path, "from nights").to_pylist()
    assert (row["run_id"], row["outcome"]) == ("run-5", "nothing passed")


def test_the_last_nights_can_be_asked_for(tmp_path: Path) -> None:
    for day in range(4):
        write_night(tmp_path, NIGHT + dt.timedelta(days=day))
    refresh(tmp_path)
    found = run_query(tmp_path, f"select night from nights_on(date '{NIGHT + dt.timedelta(days=2)}', nights := 2)")
    assert [row["night"].day for row in found.to_pylist()] == [3, 2]


def test_a_current_bundle_that_no_candidate_matches_is_an_outcome_of_its_own(tmp_path: Path) -> None:
    run = f"run-{NIGHT}"
    write_night(tmp_path, NIGHT, [measurement(run, NIGHT), measurement(run, NIGHT, setting="current")])
    decided = promotion(run, NIGHT, decision="reject", **BEFORE)
    ResultsStore(tmp_path).append("promotions", [decided], run, at(NIGHT))
    refresh(tmp_path)
    found = run_query(tmp_path, "select setting, became, why, rank from outcomes").to_pylist()
    assert [tuple(row.values()) for row in found] == [
        ("current", "stays", "no challenger passes", None),
        ("primary", "reject", "fastest of those that pass", 1),
    ]
