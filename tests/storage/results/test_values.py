"""What becomes of rows that a table does not take as they are."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.results.catalog import refresh
from storage.results.query import run_query
from storage.results.tables import MEASUREMENTS
from storage.results.values import admit, known
from storage.results.writer import ResultsStore, validated
from tests.storage.results.rows import at, baseline, measurement

NIGHT = dt.date(2026, 3, 1)


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
        ("saturation", -0.1, "-0.1 is out of range for ranges"),
        ("size_bytes", -1, "-1 is out of range for bytes"),
        ("size_bytes", 2.5, "2.5 is not a whole number"),
        ("size_bytes", 2**70, "not int64"),
        ("size_bytes", "many", "not int64"),
        ("error", 3.0, "not string"),
        ("verdict", "fine", "'fine' is not one of valid, inconclusive, not-measured"),
        ("metrics", "loss", "not map<string, double>"),
        ("block_s", 0.1, "not list<item: double>"),
    ],
)
@pytest.mark.slow
def test_a_bad_value_is_null_with_its_reason_and_costs_nothing_else(
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
def test_a_row_that_cannot_be_kept_costs_no_other_row(tmp_path: Path, changes: dict[str, object], why: str) -> None:
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
    for row in rows:
        row.pop("sequence_length", None)  # of the key
    admitted = admit(MEASUREMENTS, rows)
    assert validated(MEASUREMENTS, admitted[0], "r1").num_rows == len(rows)
    # The gate sees the rows before they are recorded, and must see the same.
    assert admit(MEASUREMENTS, [known(MEASUREMENTS, row) for row in rows]) == admitted
