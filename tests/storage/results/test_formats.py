from __future__ import annotations

import json

import duckdb
import pyarrow as pa
import pytest

from storage.results.query import FORMATS, boxed, formatted


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
            # DuckDB 2.0's own table cannot print the least HUGEINT, which no column of a store holds.
            values = "1::hugeint" if column == "hugeint" and format_ == "table" else f'"{column}"'
            table = connection.sql(f"select {values} from test_all_types()").to_arrow_table()
            assert formatted(table, format_)


ROWS = pa.table({"quality_difference": [0.5, None], "candidate": ["a/eager", "b/eager"], "why": ["x" * 90, ""]})


def test_a_pipe_gets_every_row_and_complete_texts() -> None:
    rows = pa.table({"number": range(200), "why": ["x" * 300] * 200})
    text = formatted(rows, "table").decode()
    assert text.count("x" * 300) == 200
    assert "…" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_lines_that_fit_and_every_row(width: int) -> None:
    lines = boxed(ROWS, width).decode().splitlines()
    assert max(map(len, lines)) <= width
    assert sum("0.5" in line for line in lines) == 1


def test_a_result_without_rows_has_its_columns() -> None:
    text = boxed(pa.table({"night": pa.array([], pa.int64())})).decode()
    assert "night" in text
    assert "0 rows" in text
