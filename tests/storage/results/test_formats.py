from __future__ import annotations

import json

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.results.formats import FORMATS, fitted, formatted


def test_json_has_null_for_nan_exact_decimals_and_maps_as_objects() -> None:
    sql = """
        select 'nan'::double a, ['-inf'::double, 1] b, {'x': ['nan'::float]} c, map{date '2026-03-01': 'inf'::float} d,
            12345678901234567890.12::decimal(38, 2) e, [map{1: 2}] f
    """
    with duckdb.connect() as connection:
        written = formatted(connection.sql(sql).to_arrow_table(), "json")
    assert b"NaN" not in written
    assert json.loads(written) == [
        {
            "a": None, "b": [None, 1.0], "c": {"x": [None]}, "d": {"2026-03-01": None},
            "e": "12345678901234567890.12", "f": [{"1": 2}],
        }
    ]  # fmt: skip


@pytest.mark.parametrize("format_", sorted(FORMATS.keys() - {"parquet"}))
@pytest.mark.slow
def test_every_type_that_duckdb_has_can_be_written_as_text(format_: str) -> None:
    with duckdb.connect() as connection:
        columns = [row[0] for row in connection.execute("describe from test_all_types()").fetchall()]
        for column in columns:
            table = connection.sql(f'select "{column}" from test_all_types()').to_arrow_table()
            assert formatted(table, format_)


def lines(rows: pa.Table, width: int) -> list[str]:
    return fitted(rows, width).decode().splitlines()


ROWS = pa.table({"quality_difference": [0.5, -1.25], "candidate": ["a/eager", "b/eager"], "why": ["x" * 30, ""]})


def test_what_fits_is_the_same_table_as_in_a_pipe() -> None:
    assert fitted(ROWS, 61) == formatted(ROWS, "table")


def test_then_texts_are_cut_to_the_greatest_length_that_fits() -> None:
    rows = pa.table({"candidate": ["a/eager"], "why": ["x" * 200], "speedup": [1.5]})
    assert lines(rows, 90) == [
        f"candidate  why{' ' * 63}speedup",
        f"---------  {'-' * 64}  -------",
        f"a/eager    {'x' * 63}…      1.5",
        "(1 row)",
        'Texts that end with "…" are cut. For complete values: --format json',
    ]
    assert f"a/eager    {'x' * 23}…      1.5" in lines(rows, 50)


def test_a_table_that_cannot_fit_becomes_records() -> None:
    rows = pa.table({"name": ["a" * 12, "b" * 30], "speedup": [1.5, None], "latency": [2, 3]})
    assert lines(rows, 25) == [
        "--- row 1 of 2 ---",
        f"name     {'a' * 12}",
        "speedup  1.5",
        "latency  2",
        "--- row 2 of 2 ---",
        f"name     {'b' * 15}…",
        "speedup",
        "latency  3",
        "(2 rows)",
        'Texts that end with "…" …',
    ]


numbers = st.integers(-(10**9), 10**9)
words = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), max_size=60)


@settings(max_examples=40)  # each starts DuckDB, which writes the cells
@given(st.integers(1, 8), st.lists(st.tuples(st.lists(numbers, min_size=8, max_size=8), words)), st.integers(10, 130))
@pytest.mark.slow
def test_no_line_is_wider_than_the_terminal_and_no_number_is_lost(
    columns: int, rows: list[tuple[list[int], str]], width: int
) -> None:
    table = pa.table(
        {f"column_{index}": pa.array([row[index] for row, _ in rows], pa.int64()) for index in range(columns)}
    )
    shown = lines(table.append_column("why", pa.array([text for _, text in rows], pa.string())), width)
    assert max(map(len, shown)) <= width
    if width >= len("column_0  -1000000000"):
        text = " ".join(shown)
        assert all(str(number) in text for row, _ in rows for number in row[:columns])
