from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import StoreError
from storage.results.catalog import refresh
from storage.results.query import run_query
from storage.results.tables import MEASUREMENTS
from storage.results.writer import ResultsStore, admit, known, validated
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
    [({"latency_ms": 3.0}, "unknown columns"), ({"run_id": "other"}, "run id 'other', not 'r1'")],
)
def test_a_row_that_only_a_defect_can_make_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    rows = [baseline("r1", NIGHT), measurement("r1", NIGHT) | changes]
    with pytest.raises(StoreError, match=message):
        ResultsStore(tmp_path).append("measurements", rows, "r1", at(NIGHT))
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", ".hidden", "compacted-0001", "x" * 200])
def test_a_run_id_that_is_not_a_file_name_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(StoreError, match="not a valid run id"):
        ResultsStore(tmp_path).append("runs", [run_row(run_id, NIGHT)], run_id, at(NIGHT))


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
    table, _ = validated(MEASUREMENTS, rows[::-1], "r1")
    assert table.schema.equals(MEASUREMENTS.schema, check_metadata=True)
    kept = [(row["latency_s"], row["size_bytes"], row["block_s"]) for row in table.to_pylist()]
    assert kept == values


def test_tables_that_fail_affect_no_other_table_and_are_all_reported(tmp_path: Path) -> None:
    tables = {
        "measurements": [measurement("r1", NIGHT, unheard_of=1)],
        "runs": [run_row("r1", NIGHT)],
        "promotions": [promotion("r2", NIGHT)],
    }
    with pytest.raises(StoreError, match="unheard_of") as raised:
        ResultsStore(tmp_path).record(tables, "r1", at(NIGHT))
    assert "run id 'r2'" in raised.value.__notes__[0]
    assert [path.parent.parent.name for path in tmp_path.rglob("*.parquet")] == ["runs"]


def test_a_bad_value_is_reported_once_when_its_row_is_written(tmp_path: Path) -> None:
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


def recorded(root: Path, *rows: dict[str, Any], table: str = "measurements") -> tuple[list[dict[str, Any]], list[str]]:
    """Record one table's rows; give them as they are in the store, and the lines that were told."""
    told: list[str] = []
    ResultsStore(root).record({table: rows}, "r1", at(NIGHT), told.append)
    [path] = (root / f"results/{table}").rglob("*.parquet")
    return pq.ParquetFile(path).read().to_pylist(maps_as_pydicts="strict"), told


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("speedup", math.nan, "nan is not a finite number"),
        ("speedup", 0.0, "0 is out of range for ratio"),
        ("latency_s", math.inf, "inf is not a finite number"),
        ("latency_s", -1.0, "-1 is out of range for seconds"),
        ("coverage", 1.5, "1.5 is out of range for share (0 to 1)"),
        ("size_bytes", 2.5, "2.5 is not a whole number"),
        ("size_bytes", 2**70, "not int64"),
        ("verdict", "fine", "'fine' is not one of valid, inconclusive, not-measured"),
        ("metrics", "loss", "not map<string, double>"),
        ("metrics", {"loss": math.inf}, "inf is not a finite number"),
        ("block_s", [0.1, math.inf], "inf is not a finite number"),
    ],
)
@pytest.mark.slow
def test_a_bad_value_is_null_with_its_reason_and_affects_no_other_value(
    tmp_path: Path, column: str, value: object, why: str
) -> None:
    good = measurement("r1", NIGHT)
    rows, told = recorded(tmp_path, baseline("r1", NIGHT), good | {column: value}, measurement("r1", NIGHT, recipe="z"))
    assert [row["recipe"] for row in rows] == ["dynamic", "float", "z"]
    bad = rows[0]
    assert bad[column] is None
    assert list(bad["unknown"]) == [column]
    assert why in bad["unknown"][column]
    assert {name: bad[name] for name in good if name != column} == {n: v for n, v in good.items() if n != column}
    assert [row["unknown"] for row in rows[1:]] == [None, None]
    [line] = told
    assert line.startswith(f"measurements of word-lm dynamic/eager: {column} not recorded: ")
    assert why in line


def test_text_that_is_not_unicode_is_kept_escaped(tmp_path: Path) -> None:
    error = b"no such file: caf\xe9".decode(errors="surrogateescape")
    rows, told = recorded(tmp_path, measurement("r1", NIGHT, status="failed", error=error))
    assert rows[0]["error"] == "no such file: caf\\udce9"
    assert (rows[0]["unknown"], told) == (None, [])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"threads": "two"}, "threads: not int64"),
        ({"workload": None}, "workload: it is NULL"),
        ({"status": "fine"}, "status: 'fine' is not one of ok, failed, skipped"),
        ({"recipe": "float"}, "an earlier row has the same key"),
        ({"recipe": "float", "batch_size": 1.0}, "an earlier row has the same key"),
    ],
)
@pytest.mark.slow
def test_a_row_that_cannot_be_kept_affects_no_other_row(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    rows = baseline("r1", NIGHT), measurement("r1", NIGHT) | changes, measurement("r1", NIGHT, recipe="z")
    found, told = recorded(tmp_path, *rows)
    assert [row["recipe"] for row in found] == ["float", "z"]
    [line] = told
    assert "is dropped" in line
    assert why in line


def test_a_value_that_is_unknown_is_found_by_a_query(tmp_path: Path) -> None:
    killed = {"int8_time_share": "The proof process was killed by SIGSEGV.", "instructions": "The same."}
    good = {"int8_time_share": 0.9, "unknown": None}
    rows = [
        baseline("r1", NIGHT, **good),
        measurement("r1", NIGHT, unknown=killed),
        measurement("r1", NIGHT, recipe="z", **good),
    ]
    recorded(tmp_path, *rows)
    refresh(tmp_path)
    asked = "select recipe, unknown['int8_time_share'] as why from latest where unknown is not null"
    assert run_query(tmp_path, asked).to_pylist() == [{"recipe": "dynamic", "why": killed["int8_time_share"]}]
    # Not looked at is not the same as nothing to see.
    executed = run_query(tmp_path, "select recipe, int8_time_share, unknown from executed").to_pylist()
    assert executed[-1] == {"recipe": "dynamic", "int8_time_share": None, "unknown": killed["int8_time_share"]}
    assert [row["unknown"] for row in executed[:-1]] == [None, None]


junk = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(exclude_categories=())), st.binary(),
    st.dates(), st.lists(st.floats()), st.dictionaries(st.text(), st.floats()), st.tuples(st.text(), st.integers()),
)  # fmt: skip
VALUES = [column.name for column in MEASUREMENTS.columns if column.nullable and column.name != "unknown"]


@given(st.lists(st.dictionaries(st.sampled_from(VALUES), junk, max_size=4), min_size=1, max_size=4))
@pytest.mark.slow
def test_whatever_the_values_every_row_is_kept(changes: list[dict[str, Any]]) -> None:
    rows = [measurement("r1", NIGHT, recipe=f"recipe-{index}") | each for index, each in enumerate(changes)]
    admitted = admit(MEASUREMENTS, rows)
    assert len(admitted[0]) == len(rows)
    # The gate sees the rows before they are recorded, and must see the same.
    assert admit(MEASUREMENTS, [known(MEASUREMENTS, row) for row in rows]) == admitted
