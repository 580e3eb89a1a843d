"""Format rows as a table for a terminal, or as complete text, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

_UNLIMITED = 1 << 20


def formatted(rows: pa.Table, format_: str) -> bytes:
    """Write rows in one of `FORMATS`: UTF-8 text that ends with a newline, or a Parquet file.

    DuckDB converts values to JSON, in which NaN and infinities become null. Columns with the same name are numbered.
    """
    return FORMATS[format_](rows)


def boxed(rows: pa.Table, width: int = _UNLIMITED) -> bytes:
    """Format rows as DuckDB's own table; a narrow table has wrapped cells, and "…" in place of the middle columns."""
    with duckdb.connect() as connection, redirect_stdout(io.StringIO()) as text:
        relation = connection.from_arrow(rows)
        relation.show(
            max_width=width,
            max_rows=max(1, rows.num_rows),
            max_col_width=min(width, _UNLIMITED if width == _UNLIMITED else 30),
            null_value="",
        )
    return text.getvalue().rstrip("\n").encode() + b"\n"


def _csv(rows: pa.Table) -> bytes:
    names, values = _values(rows)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for row in values:
        writer.writerow([json.dumps(cell) if isinstance(cell, list | dict) else cell for cell in row])
    return buffer.getvalue().encode()


def _json(rows: pa.Table) -> bytes:
    names, values = _values(rows)
    records = [dict(zip(names, row, strict=True)) for row in values]
    return json.dumps(records, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _parquet(rows: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()


FORMATS: dict[str, Callable[[pa.Table], bytes]] = {"table": boxed, "csv": _csv, "json": _json, "parquet": _parquet}


def _values(rows: pa.Table) -> tuple[list[str], list[list[object]]]:
    """Return the columns' names and each row's JSON values; decimals become text to keep all digits."""
    columns = [column.cast(pa.string()) if pa.types.is_decimal(column.type) else column for column in rows.columns]
    with duckdb.connect() as connection:
        relation = connection.from_arrow(pa.table(columns, names=rows.column_names))
        names, written = relation.columns, relation.project("to_json(columns(*))").fetchall()
    read = json.JSONDecoder(parse_constant=lambda name: None).decode
    return names, [[None if cell is None else read(cell) for cell in row] for row in written]
