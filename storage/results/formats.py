"""Rows as text, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq


def formatted(rows: pa.Table, format_: str) -> bytes:
    """Rows in one of `FORMATS`: UTF-8 text that ends with a new line, or a Parquet file.

    The text is DuckDB's own JSON. NaN and infinities, which JSON does not have, are NULL; columns of the same name are
    numbered.
    """
    return FORMATS[format_](rows)


@dataclass(frozen=True)
class Grid:
    """Rows as text: the columns' names, each row's cells, and which columns are numbers, to be aligned right."""

    names: list[str]
    cells: list[list[str]]
    numeric: list[bool]


def grid(rows: pa.Table) -> Grid:
    """Write every cell in one line, numbers to six digits."""
    names, values = _values(rows)
    numeric = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in rows.schema.types]
    return Grid(names, [[_text(value) for value in row] for row in values], numeric)


def count_line(rows: int) -> str:
    """Say below a table how many rows it has."""
    return f"({rows:,} row{'' if rows == 1 else 's'})"


def encoded(lines: Iterable[str]) -> bytes:
    """Lines of text as UTF-8."""
    return "".join(f"{line}\n" for line in lines).encode()


def _table(rows: pa.Table) -> bytes:
    text = grid(rows)
    widths = [max(map(len, column)) for column in zip(text.names, *text.cells, strict=True)]

    def aligned(row: Iterable[str]) -> str:
        padded = zip(row, widths, text.numeric, strict=True)
        return "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return encoded([aligned(text.names), rule, *map(aligned, text.cells), count_line(rows.num_rows)])


def _markdown(rows: pa.Table) -> bytes:
    text = grid(rows)
    rule = ["---:" if number else "---" for number in text.numeric]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in text.cells]
    return encoded(f"| {' | '.join(row)} |" for row in [text.names, rule, *cells])


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


FORMATS: dict[str, Callable[[pa.Table], bytes]] = {
    "table": _table,
    "csv": _csv,
    "json": _json,
    "markdown": _markdown,
    "parquet": _parquet,
}


def _values(rows: pa.Table) -> tuple[list[str], list[list[object]]]:
    """The columns' names, and each row's values as JSON has them; decimals as text, which is exact."""
    columns = [column.cast(pa.string()) if pa.types.is_decimal(column.type) else column for column in rows.columns]
    with duckdb.connect() as connection:
        relation = connection.from_arrow(pa.table(columns, names=rows.column_names))
        names, written = relation.columns, relation.project("to_json(columns(*))").fetchall()
    read = json.JSONDecoder(parse_constant=lambda name: None).decode
    return names, [[None if cell is None else read(cell) for cell in row] for row in written]


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
