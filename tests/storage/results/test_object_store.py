"""The results on a real S3 server on loopback."""

from __future__ import annotations

import datetime as dt

import pytest

from storage.results.catalog import refresh
from storage.results.compact import compact
from storage.results.query import QueryError, run_query
from storage.root import StoreRoot
from tests.storage.results.rows import at, write_night

pytestmark = [pytest.mark.server, pytest.mark.slow]
NIGHTS = [dt.date(2026, 3, 1), dt.date(2026, 3, 2), dt.date(2026, 4, 1)]
LATER = at(dt.date(2026, 4, 5))


@pytest.fixture
def store(s3_store: str) -> str:
    for night in NIGHTS:
        write_night(s3_store, night)
    refresh(s3_store)
    return s3_store


def count(store: str, table: str = "measurements") -> int:
    rows: int = run_query(store, f"select count(*) from {table}").column(0)[0].as_py()
    return rows


def test_every_view_answers(store: str) -> None:
    refresh(store)
    assert count(store) == 6
    assert count(store, "samples") == 18
    assert count(store, "leaderboard") == 2
    for view in ("latest", "trend", "pareto", "regressions", "failures"):
        run_query(store, f"from {view}")


def test_a_query_cannot_write_there(store: str) -> None:
    before = StoreRoot.of(store).list("")
    for sql in (f"copy (select 1) to '{store}/results/x.csv'", "create table x as select 1"):
        with pytest.raises(QueryError):
            run_query(store, sql)
    assert StoreRoot.of(store).list("") == before


def test_a_finished_month_is_compacted_into_one_file(store: str) -> None:
    compact(store, now=LATER)
    assert count(store) == 6
    names = [
        entry.name.removeprefix("results/measurements/") for entry in StoreRoot.of(store).list("results/measurements")
    ]
    assert names == ["month=2026-03/compacted-0001.parquet", "month=2026-04/run-2026-04-01.parquet"]
    assert compact(store, now=LATER).written == ()
