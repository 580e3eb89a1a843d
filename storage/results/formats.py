"""Query results as text or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq


def formatted(rows: pa.Table, format_: str) -> bytes:
    """Rows in one of `FORMATS`: UTF-8 text that ends with a new line, or a Parquet file.

    The text is that of DuckDB's own JSON, which has a form for every type. NaN and infinities, which JSON does not
    have, are NULL; columns of the same name are numbered.
    """
    return FORMATS[format_](rows)


def _table(rows: pa.Table) -> bytes:
    names, values = _values(rows)
    cells = [[_text(value) for value in row] for row in values]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    numeric = _are_numeric(rows)

    def aligned(row: Iterable[str]) -> str:
        padded = zip(row, widths, numeric, strict=True)
        return "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in padded).rstrip()

    lines = [aligned(names), "  ".join("-" * width for width in widths), *map(aligned, cells)]
    lines.append(f"({rows.num_rows:,} row{'' if rows.num_rows == 1 else 's'})")
    return _encoded(lines)


def _markdown(rows: pa.Table) -> bytes:
    names, values = _values(rows)
    cells = [[_text(value).replace("|", "\\|") for value in row] for row in values]
    rule = ["---:" if number else "---" for number in _are_numeric(rows)]
    return _encoded(f"| {' | '.join(row)} |" for row in [names, rule, *cells])


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


def _are_numeric(rows: pa.Table) -> list[bool]:
    return [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in rows.schema.types]


def _encoded(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
