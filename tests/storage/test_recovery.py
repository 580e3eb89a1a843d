"""What a night that died did not record, found in the pointers' history and recorded by the next one."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest

from storage.bundles import BundleStore
from storage.check import check
from storage.holder import Holder
from storage.recovery import record_dead_run, record_switch, unrecorded_switches
from storage.results.compact import compact
from storage.results.query import open_fresh, rows_of
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from tests.flows.commands.filled_store import NIGHTS, RUNS, VERSIONS, hand_over
from tests.storage.results.rows import at, baseline, measurement, promotion, run_row
from tests.storage.test_manifest import GOOD


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.server)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> StoreRoot:
    return StoreRoot.of(tmp_path / "store" if request.param == "local" else request.getfixturevalue("s3_store"))


def measure(root: StoreRoot, night: int) -> None:
    """Record what a night measures before it hands anything over."""
    run, day = RUNS[night], NIGHTS[night]
    winner = measurement(run, day, runtime="torchscript", artifact_digest=GOOD["sources"]["quantized"])
    failed = measurement(run, day, recipe="half", status="failed")
    ResultsStore(root).append("measurements", [baseline(run, day), winner, failed], run, at(day), "word-lm")


def rows(root: StoreRoot, query: str) -> list[dict[str, object]]:
    with open_fresh(root) as connection:
        return [dict(row) for row in rows_of(connection, query)]


def recover(root: StoreRoot) -> None:
    for missing in unrecorded_switches(root):
        record_switch(root, missing)


def test_a_switch_that_a_night_did_not_live_to_record_is_found_and_recorded(root: StoreRoot) -> None:
    for night in (0, 1):
        measure(root, night)
        hand_over(root, night)
    assert [(each.run_id, each.before) for each in unrecorded_switches(root)] == [
        (RUNS[0], ""), (RUNS[1], VERSIONS[0])
    ]  # fmt: skip
    recover(root)
    assert unrecorded_switches(root) == []
    first, second = rows(root, "from promotions order by night")
    assert (first["recipe"], first["runtime"], first["decision"]) == ("dynamic", "torchscript", "promote")
    assert (first["night"], first["bundle_version"], first["reason"]) == (NIGHTS[0], VERSIONS[0], "fastest of 1")
    assert first["artifact_digest"] == GOOD["sources"]["quantized"]
    assert [first["incumbent_version"], first["incumbent_stays"]] == [None, None]
    assert [second["incumbent_version"], second["incumbent_stays"]] == [VERSIONS[0], False]
    # The bundle says that another run made it, so that its rules are of other numbers.
    assert first["rules"] == "[]"


@pytest.mark.slow
def test_the_rules_are_those_of_the_run_that_made_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GOOD, "run_id", RUNS[0])
    root = StoreRoot.of(tmp_path)
    measure(root, 0)
    hand_over(root, 0)
    recover(root)
    (row,) = rows(root, "from promotions")
    assert [rule["name"] for rule in json.loads(str(row["rules"]))] == ["min_speedup"]


@pytest.mark.slow
def test_store_check_says_what_to_do_about_a_switch_without_a_row(root: StoreRoot) -> None:
    measure(root, 0)
    hand_over(root, 0)
    (problem,) = check(root).problems
    assert problem.where == "handoff/word-lm/current.json"
    assert f"run {RUNS[0]} published word-lm/{VERSIONS[0]}, but promotions has no row for it" in problem.what
    assert "run nightquant nightly" in problem.remedy
    recover(root)
    assert [each for each in check(root).problems if "promotions" in each.what] == []


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.slow
def test_what_was_recorded_is_left_alone(tmp_path: Path, compacted: bool) -> None:
    root = StoreRoot.of(tmp_path)
    measure(root, 0)
    hand_over(root, 0)
    decided = promotion(RUNS[0], NIGHTS[0], bundle_version=VERSIONS[0])
    ResultsStore(root).append("promotions", [decided], RUNS[0], at(NIGHTS[0]), "word-lm")
    if compacted:
        later = dt.datetime.now(dt.UTC) + dt.timedelta(days=60)
        for _ in range(2):
            compact(root, now=later, grace=dt.timedelta(0))
        assert [entry.name for entry in root.list("results/promotions") if RUNS[0] in entry.name] == []
    assert unrecorded_switches(root) == []
    assert rows(root, "select bundle_version from promotions") == [{"bundle_version": VERSIONS[0]}]


def test_switches_of_people_and_of_runs_whose_results_were_moved_out_do_not_count(tmp_path: Path) -> None:
    root = StoreRoot.of(tmp_path)
    hand_over(root, 0)
    hand_over(root, 1)
    BundleStore(root).roll_back("word-lm", by=f"run {RUNS[0]}", reason="worse")
    measure(root, 0)
    assert [each.switch.version for each in unrecorded_switches(root)] == [VERSIONS[0]]
    assert [each.switch.action for each in unrecorded_switches(root)] == ["promote"]


def test_a_run_that_died_after_it_had_measured_gets_its_row(tmp_path: Path) -> None:
    root, since = StoreRoot.of(tmp_path), at(NIGHTS[0], 2)
    dead = Holder(RUNS[0], "", host="bench", pid=7, since=since)
    assert not record_dead_run(root, dead)
    measure(root, 0)
    assert record_dead_run(root, dead)
    assert not record_dead_run(root, dead)
    (row,) = rows(root, "from runs")
    assert (row["run_id"], row["night"], row["status"], row["profile"]) == (RUNS[0], NIGHTS[0], "failed", "standard")
    assert (row["workloads"], row["candidates_ok"], row["candidates_failed"]) == (1, 2, 1)
    assert row["started_at"] == since
    assert "process 7 on bench" in str(row["message"])


def test_a_run_that_recorded_its_end_keeps_its_row(tmp_path: Path) -> None:
    root = StoreRoot.of(tmp_path)
    measure(root, 0)
    ResultsStore(root).append("runs", [run_row(RUNS[0], NIGHTS[0], message="as it was")], RUNS[0], at(NIGHTS[0], 4))
    assert not record_dead_run(root, Holder(RUNS[0], ""))
    assert rows(root, "select message from runs") == [{"message": "as it was"}]
