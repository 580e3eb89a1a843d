from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from storage.results.catalog import build, refresh
from storage.results.compact import compact
from storage.results.query import run_query
from storage.results.tables import MEASUREMENTS
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from tests.storage.results.rows import at, measurement, rewrite, write_night

pytestmark = pytest.mark.slow

NIGHTS = [dt.date(2026, 3, day) for day in (1, 2, 3)] + [dt.date(2026, 4, day) for day in (1, 2)]
LATER = at(dt.date(2026, 4, 5))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for night in NIGHTS:
        write_night(tmp_path, night)
    refresh(tmp_path)
    return tmp_path


def names(store: Path, table: str = "measurements") -> list[str]:
    folder = store / "results" / table
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def count(store: Path) -> int:
    rows: int = run_query(store, "select count(*) from measurements").column(0)[0].as_py()
    return rows


def count_by_glob(store: Path) -> int:
    found = duckdb.sql(
        f"select count(*) from read_parquet('{store}/results/measurements/**/*.parquet', union_by_name=true)"
    ).fetchall()
    rows: int = found[0][0]
    return rows


def test_a_finished_month_is_merged_into_one_file(store: Path) -> None:
    done = compact(store, now=LATER)
    assert done.written == ("runs 2026-03", "measurements 2026-03")
    assert done.files_removed == 6
    assert names(store) == [
        "month=2026-03/compacted-0001.parquet",
        *(f"month=2026-04/run-{day}.parquet" for day in NIGHTS[3:]),
    ]
    assert count(store) == count_by_glob(store) == 10
    assert compact(store, now=LATER).written == ()


def test_a_killed_compaction_is_finished_by_the_next_and_no_row_counts_twice(
    store: Path, tmp_path_factory: Any
) -> None:
    copy = tmp_path_factory.mktemp("killed") / "store"
    shutil.copytree(store, copy)
    compact(store, now=LATER)
    merged = Path("results/measurements/month=2026-03/compacted-0001.parquet")
    shutil.copy(store / merged, copy / merged)  # written, before any of the runs' files was deleted
    refresh(copy)
    assert count(copy) == 10
    compact(copy, now=LATER)
    assert names(copy) == names(store)


def test_a_late_run_of_a_compacted_month_is_merged(store: Path) -> None:
    compact(store, now=LATER)
    write_night(store, dt.date(2026, 3, 9))
    refresh(store)
    assert count(store) == count_by_glob(store) == 12
    compact(store, now=LATER)
    assert count(store) == count_by_glob(store) == 12
    assert [name for name in names(store) if "2026-03" in name] == ["month=2026-03/compacted-0002.parquet"]


def test_a_retried_run_of_a_compacted_month_is_not_written_again(store: Path) -> None:
    compact(store, now=LATER)
    run = f"run-{NIGHTS[0]}"
    path = ResultsStore(store).append("measurements", [measurement(run, NIGHTS[0])], run, LATER)
    assert path.endswith("month=2026-03/compacted-0001.parquet")


def test_files_without_a_later_column_compact_to_null(tmp_path: Path) -> None:
    night = dt.date(2026, 3, 1)
    path = Path(ResultsStore(tmp_path).append("measurements", [measurement("old", night)], "old", at(night)))
    rewrite(path, pq.ParquetFile(path).read().drop_columns(["block_s", "aa_high"]))
    write_night(tmp_path, dt.date(2026, 3, 2))
    compact(tmp_path, now=LATER)
    compacted = pq.ParquetFile(tmp_path / "results/measurements/month=2026-03/compacted-0001.parquet").read()
    assert compacted.schema.names == MEASUREMENTS.schema.names
    assert compacted.column("block_s").null_count == 1
    assert count(tmp_path) == 3


def test_a_reader_that_a_compaction_overtakes_lists_again(store: Path, monkeypatch: Any) -> None:
    root = StoreRoot.of(store)
    listed = type(root).list

    def listed_then_overtaken(self: Any, prefix: str) -> Any:
        entries = listed(self, prefix)
        if prefix.endswith("measurements"):
            monkeypatch.undo()
            compact(store, now=LATER)
        return entries

    monkeypatch.setattr(type(root), "list", listed_then_overtaken)
    build(root, store / "built.duckdb")
    with duckdb.connect(store / "built.duckdb", read_only=True) as connection:
        assert connection.execute("select count(*) from measurements").fetchall() == [(10,)]
