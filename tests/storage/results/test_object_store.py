"""The results on a real S3 server on loopback."""

from __future__ import annotations

import datetime as dt
import threading

import pytest

from storage.results.catalog import refresh
from storage.results.compact import compact
from storage.results.query import QueryError, run_query
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from tests.storage.results.rows import at, measurement, write_night

pytestmark = [pytest.mark.server, pytest.mark.slow]
NIGHTS = [dt.date(2026, 3, 1), dt.date(2026, 3, 2), dt.date(2026, 4, 1)]
LATER = at(dt.date(2026, 4, 5))
EXPIRED = dt.timedelta(days=-36500)


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


def test_a_night_published_after_a_listing_is_seen(store: str) -> None:
    write_night(store, dt.date(2026, 4, 2))
    refresh(store)
    assert count(store) == 8


def test_a_query_cannot_write_there(store: str) -> None:
    before = StoreRoot.of(store).list("")
    for sql in (f"copy (select 1) to '{store}/results/x.csv'", "create table x as select 1"):
        with pytest.raises(QueryError):
            run_query(store, sql)
    assert StoreRoot.of(store).list("") == before


def test_a_retried_run_writes_nothing(store: str) -> None:
    run = f"run-{NIGHTS[0]}"
    path = ResultsStore(store).append("measurements", [measurement(run, NIGHTS[0])], run, LATER)
    assert path == f"{store}/results/measurements/month=2026-03/{run}.parquet"


def test_a_finished_month_is_compacted_and_its_small_files_go_one_cycle_later(store: str) -> None:
    for _ in range(2):
        compact(store, now=LATER, grace=EXPIRED)
        assert count(store) == 6
    names = [
        entry.name.removeprefix("results/measurements/") for entry in StoreRoot.of(store).list("results/measurements")
    ]
    assert names == [
        "compacted/2026-03-0001.pq",
        "month=2026-03/compacted-0001.parquet",
        "month=2026-04/run-2026-04-01.parquet",
    ]
    assert compact(store, now=LATER, grace=EXPIRED).retired == ()


def test_two_writers_at_once_lose_nothing(s3_store: str) -> None:
    def write(writer: int) -> None:
        for day in range(1, 4):
            write_night(s3_store, dt.date(2026, 5, day), run_id=f"run-{writer}-{day}", rows=None)

    threads = [threading.Thread(target=write, args=[writer]) for writer in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refresh(s3_store)
    assert count(s3_store) == 12
