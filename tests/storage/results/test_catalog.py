from __future__ import annotations

import datetime as dt
import os
import shutil
import threading
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from storage.errors import StoreError
from storage.results.catalog import CATALOG, described, refresh
from storage.results.query import run_query
from storage.results.writer import ResultsStore
from tests.storage.results.rows import at, measurement, rewrite, write_night

pytestmark = pytest.mark.slow

NIGHT = dt.date(2026, 3, 1)


def count(store: Path, table: str) -> int:
    rows: int = run_query(store, f"select count(*) from {table}").column(0)[0].as_py()
    return rows


def test_an_empty_store_has_every_table_and_view(tmp_path: Path) -> None:
    with duckdb.connect(refresh(tmp_path), read_only=True) as connection:
        assert {name for (name,) in connection.execute("show tables").fetchall()} == {item.name for item in described()}
        for item in described():
            assert connection.execute(f"from {item.name}").fetchall() == []


def test_the_catalog_opens_from_a_copy_in_another_place(tmp_path: Path) -> None:
    write_night(tmp_path / "store", NIGHT)
    copied = shutil.copy(refresh(tmp_path / "store"), tmp_path / "copy.duckdb")
    shutil.rmtree(tmp_path / "store")
    with duckdb.connect(copied, read_only=True) as connection:
        assert connection.execute("select count(*) from leaderboard").fetchall() == [(2,)]
        assert connection.execute("select count(*) from samples").fetchall() == [(6,)]


def test_every_table_view_and_column_has_a_description(tmp_path: Path) -> None:
    write_night(tmp_path, NIGHT)
    refresh(tmp_path)
    sql = """
        select table_name as name, '' as column_name, comment from duckdb_tables() where schema_name = 'main'
        union all select view_name, '', comment from duckdb_views() where schema_name = 'main' and not internal
        union all select table_name, column_name, comment from duckdb_columns()
            where schema_name = 'main' and not internal
    """
    meanings = {(row["name"], row["column_name"]): row["comment"] for row in run_query(tmp_path, sql).to_pylist()}
    assert [key for key, meaning in meanings.items() if not meaning] == []
    assert meanings["leaderboard", ""].startswith("A summary of each workload's latest night")
    assert meanings["leaderboard", "speedup"].startswith("baseline latency / candidate latency over paired launches")
    assert (
        meanings["latest", "latency_s"]
        == meanings["measurements", "latency_s"]
        == ("median seconds per call [seconds]")
    )
    assert meanings["regressions", "since"] == "first night of the change"


def test_a_column_that_a_file_is_too_old_to_have_reads_as_null(tmp_path: Path) -> None:
    old = Path(ResultsStore(tmp_path).append("measurements", [measurement("old", NIGHT)], "old", at(NIGHT)))
    rewrite(old, pq.ParquetFile(old).read().drop_columns(["coverage", "block_s", "block_round"]))
    write_night(tmp_path, dt.date(2026, 3, 2), [measurement("new", dt.date(2026, 3, 2), coverage=0.5)], "new")
    refresh(tmp_path)
    rows = run_query(tmp_path, "select run_id, coverage from measurements order by run_id").to_pylist()
    assert rows == [{"run_id": "new", "coverage": 0.5}, {"run_id": "old", "coverage": None}]
    assert count(tmp_path, "samples") == 3


def test_a_column_that_no_file_has_yet_reads_as_null(tmp_path: Path) -> None:
    old = Path(ResultsStore(tmp_path).append("measurements", [measurement("old", NIGHT)], "old", at(NIGHT)))
    rewrite(old, pq.ParquetFile(old).read().drop_columns(["coverage", "metrics", "block_s"]))
    refresh(tmp_path)
    assert run_query(tmp_path, "select coverage, metrics from measurements").to_pylist() == [
        {"coverage": None, "metrics": None}
    ]
    types = run_query(tmp_path, "select typeof(coverage), typeof(metrics) from measurements").to_pylist()
    assert [list(row.values()) for row in types] == [["DOUBLE", "MAP(VARCHAR, DOUBLE)"]]
    assert count(tmp_path, "samples") == 0


@pytest.mark.parametrize(
    "change", ["update internal.catalog_version set version = 'x'", "drop schema internal cascade"]
)
def test_a_catalog_that_another_version_built_is_not_used(change: str, tmp_path: Path) -> None:
    write_night(tmp_path, NIGHT)
    path = refresh(tmp_path)
    with duckdb.connect(path) as connection:
        connection.execute("create or replace view leaderboard as select 1 as one")
        connection.execute("alter table runs drop message")
        connection.execute(change)
    before = Path(path).read_bytes()
    assert "candidate" in run_query(tmp_path, "from leaderboard").column_names
    assert run_query(tmp_path, "select message from runs").num_rows == 1
    assert Path(path).read_bytes() == before


def test_files_of_a_killed_writer_are_not_read(tmp_path: Path) -> None:
    write_night(tmp_path, NIGHT)
    month = tmp_path / "results/measurements/month=2026-03"
    (month / ".run-2-abc.tmp").write_bytes(b"PAR1 half a file")
    (month / ".hidden.parquet").write_bytes(b"PAR1 half a file")
    refresh(tmp_path)
    assert count(tmp_path, "measurements") == 2


def test_a_broken_file_leaves_the_catalog_as_it_was(tmp_path: Path) -> None:
    write_night(tmp_path, NIGHT)
    refresh(tmp_path)
    (tmp_path / "results/measurements/month=2026-03/bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"bad\.parquet cannot be read.*nightquant store check"):
        refresh(tmp_path)
    assert count(tmp_path, "measurements") == 2


def test_a_reader_keeps_its_catalog_through_a_refresh(tmp_path: Path) -> None:
    write_night(tmp_path, NIGHT)
    with duckdb.connect() as reader:
        reader.execute(f"attach '{refresh(tmp_path)}' as results (read_only)")
        write_night(tmp_path, dt.date(2026, 3, 2))
        refresh(tmp_path)
        assert reader.execute("select count(*) from results.measurements").fetchall() == [(2,)]
    assert count(tmp_path, "measurements") == 4


def test_refreshers_at_once_end_with_the_newest_listing(tmp_path: Path) -> None:
    def night(day: int) -> None:
        write_night(tmp_path, dt.date(2026, 3, day))
        refresh(tmp_path)

    threads = [threading.Thread(target=night, args=[day]) for day in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(tmp_path, "measurements") == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == [".locks", "results", CATALOG]


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    write_night(tmp_path, NIGHT)
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="Cannot write to the store"):
        refresh(tmp_path)
