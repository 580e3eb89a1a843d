from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import StoreError
from storage.results.tables import MEASUREMENTS, TABLES
from storage.results.writer import ResultsStore, validated
from tests.storage.results.rows import at, baseline, measurement, promotion, run_row, trial

NIGHT = dt.date(2026, 3, 1)


def test_one_file_per_run_and_table_in_the_month_of_publication(tmp_path: Path) -> None:
    path = ResultsStore(tmp_path).append("measurements", [measurement("r1", NIGHT)], "r1", at(dt.date(2026, 4, 2)))
    assert path == str(tmp_path / "results/measurements/month=2026-04/r1.parquet")
    assert [item.name for item in Path(path).parent.iterdir()] == ["r1.parquet"]


@pytest.mark.parametrize("month", [3, 4])
def test_a_retried_run_returns_the_existing_file(tmp_path: Path, month: int) -> None:
    store = ResultsStore(tmp_path)
    first = store.append("measurements", [measurement("r1", NIGHT)], "r1", at(NIGHT))
    again = store.append("measurements", [measurement("r1", NIGHT, speedup=9.0)], "r1", at(dt.date(2026, month, 9)))
    assert again == first
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speedup": math.nan}, "column speedup: nan is not a finite"),
        ({"block_s": [0.1, math.inf]}, "column block_s: inf is not a finite"),
        ({"metrics": {"loss": math.nan}}, "column metrics: nan is not a finite"),
        ({"speedup": 0.0}, "out of range for ratio"),
        ({"latency_s": -1.0}, "out of range for seconds"),
        ({"coverage": 1.5}, "out of range for share"),
        ({"size_bytes": "many"}, "column size_bytes: not int64"),
        ({"workload": None}, "column workload is NULL in row 1"),
        ({"latency_ms": 3.0}, "unknown columns"),
        ({"run_id": "other"}, "in a file of run"),
        ({"run_id": "s1"}, "in a file of run"),
        ({"recipe": "float"}, "share"),
        ({"status": "fine"}, "not one of ok, failed"),
    ],
)
@pytest.mark.slow
def test_a_bad_row_is_refused_and_nothing_is_written(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    rows = [baseline("r1", NIGHT), measurement("r1", NIGHT) | changes]
    with pytest.raises(StoreError, match=message):
        ResultsStore(tmp_path).append("measurements", rows, "r1", at(NIGHT))
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", ".hidden", "compacted-0001", "x" * 200])
def test_a_run_id_that_is_no_file_name_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(StoreError, match="not a valid run id"):
        ResultsStore(tmp_path).append("runs", [run_row(run_id, NIGHT)], run_id, at(NIGHT))


def test_an_unknown_table_and_a_naive_time_are_refused(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    with pytest.raises(StoreError, match="Use one of these tables: runs"):
        store.append("results", [], "r1", at(NIGHT))
    with pytest.raises(StoreError, match="time zone"):
        store.append("runs", [run_row("r1", NIGHT)], "r1", dt.datetime(2026, 3, 1))


@pytest.mark.parametrize("table", list(TABLES))
def test_no_rows_are_good_too(tmp_path: Path, table: str) -> None:
    path = ResultsStore(tmp_path).append(table, [], "r1", at(NIGHT))
    assert pq.read_table(path).num_rows == 0


def test_promotions_runs_and_trials_round_trip(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    rows = {"promotions": promotion("r1", NIGHT), "runs": run_row("r1", NIGHT), "trials": trial("r1", NIGHT)}
    for table, row in rows.items():
        read = pq.ParquetFile(store.append(table, [row], "r1", at(NIGHT))).read().to_pylist()[0]
        assert {name: read[name] for name in row} == row


finite = st.floats(min_value=1e-300, max_value=1e300)


@given(st.lists(st.tuples(finite, st.integers(0, 2**62), st.lists(finite, max_size=4)), max_size=6))
@pytest.mark.slow
def test_valid_rows_keep_their_values_and_are_sorted(values: list[tuple[float, int, list[float]]]) -> None:
    rows = [
        measurement("r1", NIGHT, recipe=f"recipe-{index}", latency_s=latency, size_bytes=size, block_s=blocks)
        for index, (latency, size, blocks) in enumerate(values)
    ]
    table = validated(MEASUREMENTS, rows[::-1], "r1")
    assert table.schema.equals(MEASUREMENTS.schema, check_metadata=True)
    kept = [(row["latency_s"], row["size_bytes"], row["block_s"]) for row in table.to_pylist()]
    assert kept == values


def test_tables_that_fail_cost_no_other_table_and_are_all_told(tmp_path: Path) -> None:
    tables = {
        "measurements": [measurement("r1", NIGHT, unheard_of=1)],
        "runs": [run_row("r1", NIGHT)],
        "promotions": [promotion("r2", NIGHT)],
        "layers": [{"run_id": "r1"}],
    }
    with pytest.raises(StoreError, match="unheard_of") as raised:
        ResultsStore(tmp_path).record(tables, "r1", at(NIGHT))
    first, second = raised.value.__notes__
    assert "in a file of run 'r1'" in first
    assert "lacks columns" in second
    assert [path.parent.parent.name for path in tmp_path.rglob("*.parquet")] == ["runs"]


def test_a_bad_value_is_told_when_its_row_is_written_and_not_again(tmp_path: Path) -> None:
    tables = {"measurements": [baseline("r1", NIGHT), measurement("r1", NIGHT, latency_s=-1.0)], "runs": []}
    for lines in (1, 0):
        told: list[str] = []
        ResultsStore(tmp_path).record(tables, "r1", at(NIGHT), told.append)
        assert ["latency_s" in line for line in told] == [True] * lines
    (path,) = tmp_path.rglob("*.parquet")
    assert sorted(row["latency_s"] is None for row in pq.ParquetFile(path).read().to_pylist()) == [False, True]


def test_pages_carry_checksums_that_parquet_readers_verify(tmp_path: Path) -> None:
    path = Path(ResultsStore(tmp_path).append("runs", [run_row("r1", NIGHT)], "r1", at(NIGHT)))
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[column.dictionary_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(path, columns=["run_id"], page_checksum_verification=True)
