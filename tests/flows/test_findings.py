"""What a night finds when it looks back, and what it says of a part that could not be looked at."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from flows.findings import look_back, reported
from storage.results.writer import ResultsStore
from tests.storage.results.rows import baseline, measurement, trial, write_night

DAY = date(2026, 3, 1)


def test_missed_nights_and_removed_workloads_are_reported(tmp_path: Path) -> None:
    def absences(day: int, *, is_everything: bool = True) -> tuple[str, ...]:
        return look_back(str(tmp_path), date(2026, 3, day), {"word-lm"}, is_everything=is_everything).absences

    for day, workloads in {2: ["word-lm"], 3: ["lstm-demo", "word-lm"], 6: ["lstm-demo"]}.items():
        night, run = date(2026, 3, day), f"run-{day}"
        write_night(tmp_path, night, [baseline(run, night, workload=name) for name in workloads], run)
        if day == 2:
            assert absences(2) == ()
    missed = "no run on 2 nights, 2026-03-04 to 2026-03-05"
    assert absences(6) == ("word-lm was measured on 2026-03-03, but not tonight", missed)
    assert absences(6, is_everything=False) == (missed,)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Four nights, the last of which lacks a candidate that was there before."""
    for day in range(3):
        write_night(tmp_path, DAY + timedelta(day))
    write_night(tmp_path, DAY + timedelta(3), [baseline("last", DAY + timedelta(3))], "last")
    return tmp_path


LAST = DAY + timedelta(3)


def found(store: Path) -> list[str]:
    return [each.kind for each in look_back(str(store), LAST, {"word-lm"}, is_everything=True).comparison.findings]


def test_a_run_of_some_recipes_reports_no_missing_candidates(store: Path) -> None:
    findings = look_back(str(store), LAST, {"word-lm"}, is_everything=False)
    assert reported(findings, ()) == findings
    assert reported(findings, ("float",)).comparison.findings == ()


def test_a_part_that_fails_is_reported_as_unknown_and_affects_no_other_part(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("math domain error")

    monkeypatch.setattr("flows.findings.compare_night", fail)
    findings = look_back(str(store), LAST + timedelta(2), {"word-lm"}, is_everything=True)
    assert findings.troubles == {"comparing with earlier nights": "math domain error"}
    assert "no run on 2026-03-05" in findings.absences


def test_results_that_cannot_be_read_are_reported_as_unknown(store: Path) -> None:
    path = next((store / "results/measurements").glob("*/last.parquet"))
    path.write_bytes(path.read_bytes()[:-9])
    findings = look_back(str(store), LAST, {"word-lm"}, is_everything=True)
    (why,) = findings.troubles.values()
    assert list(findings.troubles) == ["reading the results"]
    assert "last.parquet" in why


@pytest.mark.slow
@pytest.mark.parametrize(("origin", "kinds"), [("space", []), ("written", ["vanished"])])
def test_a_search_may_replace_its_own_recipes_but_not_those_of_the_workload_file(
    store: Path, origin: str, kinds: list[str]
) -> None:
    gone = measurement("r", DAY)
    row = trial("r", DAY, recipe=gone["recipe"], runtime=gone["runtime"], origin=origin, outcome="chosen")
    ResultsStore(store).append("trials", [row], "r", datetime(2026, 3, 1, 3, tzinfo=UTC))
    assert found(store) == kinds
