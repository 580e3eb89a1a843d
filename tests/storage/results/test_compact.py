from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from storage.results.catalog import refresh
from storage.results.compact import compact
from storage.results.layout import find_files
from storage.results.query import run_query
from storage.results.tables import MEASUREMENTS
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from tests.storage.results.rows import at, measurement, rewrite, write_night

NIGHTS = [dt.date(2026, 3, day) for day in (1, 2, 3)] + [dt.date(2026, 4, day) for day in (1, 2)]
LATER = at(dt.date(2026, 4, 5))
NO_GRACE = dt.timedelta(0)
EXPIRED = dt.timedelta(days=-36500)  # files are dated by the real clock: with this, any of them is old enough


def far_ahead() -> dt.datetime:
    """When the grace period of a file written just now has passed."""
    return dt.datetime.now(dt.UTC) + dt.timedelta(days=1)


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


@pytest.mark.slow
def test_a_finished_month_is_merged_beside_its_small_files(store: Path) -> None:
    done = compact(store, now=LATER)
    assert done.written == ("runs 2026-03", "measurements 2026-03")
    assert done.files_removed == 0
    assert names(store)[0] == "compacted/2026-03-0001.pq"
    assert len(names(store)) == 6
    assert count(store) == count_by_glob(store) == 10


@pytest.mark.slow
def test_small_files_go_one_cycle_later_and_every_row_counts_once_throughout(store: Path) -> None:
    compact(store, now=LATER)
    assert compact(store, now=LATER).written == ()
    done = compact(store, now=far_ahead())
    assert "measurements 2026-03" in done.retired
    assert names(store)[:2] == ["compacted/2026-03-0001.pq", "compacted/2026-04-0001.pq"]
    assert "month=2026-03/compacted-0001.parquet" in names(store)
    assert count(store) == count_by_glob(store) == 10


@pytest.mark.slow
def test_a_late_run_of_a_compacted_month_is_merged(store: Path) -> None:
    for _ in range(2):
        compact(store, now=LATER, grace=EXPIRED)
    write_night(store, dt.date(2026, 3, 9))
    refresh(store)
    assert count(store) == count_by_glob(store) == 12
    for _ in range(2):
        compact(store, now=LATER, grace=EXPIRED)
        assert count(store) == count_by_glob(store) == 12
    assert [name for name in names(store) if "2026-03" in name] == [
        "compacted/2026-03-0002.pq",
        "month=2026-03/compacted-0002.parquet",
    ]


@pytest.mark.slow
def test_a_retried_run_of_a_compacted_month_is_not_written_again(store: Path) -> None:
    for _ in range(2):
        compact(store, now=LATER, grace=EXPIRED)
    run = f"run-{NIGHTS[0]}"
    path = ResultsStore(store).append("measurements", [measurement(run, NIGHTS[0])], run, LATER)
    assert path.endswith("compacted/2026-03-0001.pq")
    refresh(store)
    assert count(store) == count_by_glob(store) == 10


@pytest.mark.slow
def test_files_without_a_later_column_compact_to_null(tmp_path: Path) -> None:
    night = dt.date(2026, 3, 1)
    path = Path(ResultsStore(tmp_path).append("measurements", [measurement("old", night)], "old", at(night)))
    rewrite(path, pq.ParquetFile(path).read().drop_columns(["block_s", "aa_high"]))
    write_night(tmp_path, dt.date(2026, 3, 2))
    compact(tmp_path, now=LATER)
    compacted = pq.ParquetFile(tmp_path / "results/measurements/compacted/2026-03-0001.pq").read()
    assert compacted.schema.names == MEASUREMENTS.schema.names
    assert compacted.column("block_s").null_count == 1
    assert count(tmp_path) == 3


@pytest.mark.slow
def test_a_reader_of_the_old_catalog_survives_a_compaction(store: Path) -> None:
    refresh(store)
    with duckdb.connect() as reader:
        reader.execute(f"attach '{store}/results.duckdb' as results (read_only)")
        compact(store, now=LATER)
        assert reader.execute("select count(*) from results.measurements").fetchall() == [(10,)]


@pytest.mark.slow
def test_a_lister_that_a_compaction_overtakes_lists_again(store: Path, monkeypatch: Any) -> None:
    for _ in range(2):
        compact(store, now=LATER, grace=EXPIRED)
    late = write_night(store, dt.date(2026, 3, 9))
    root = StoreRoot.of(store)
    listed = type(root).list

    def listed_then_overtaken(self: Any, prefix: str) -> Any:
        entries = listed(self, prefix)
        monkeypatch.undo()
        for _ in range(2):
            compact(store, now=LATER, grace=EXPIRED)
        return entries

    monkeypatch.setattr(type(root), "list", listed_then_overtaken)
    files = find_files(root, MEASUREMENTS)
    assert files.newest["2026-03"].number == 2
    assert late in files.compacted_runs
