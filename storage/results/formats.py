"""Query results as text or Parquet."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def formatted(rows: pa.Table, format_: str) -> bytes:
    """Rows in one of `FORMATS`: UTF-8 text that ends with a new line, or a Parquet file."""
    return FORMATS[format_](rows)


def _table(rows: pa.Table) -> bytes:
    names, cells = rows.column_names, _cells(rows)
    numeric = _numeric(rows)
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = [_aligned(names, widths, numeric), "  ".join("-" * width for width in widths)]
    lines += [_aligned(row, widths, numeric) for row in cells]
    lines.append(f"({rows.num_rows:,} row{'' if rows.num_rows == 1 else 's'})")
    return "\n".join(lines).encode() + b"\n"


def _markdown(rows: pa.Table) -> bytes:
    rule = ["---:" if number else "---" for number in _numeric(rows)]
    body = [[cell.replace("|", "\\|") for cell in row] for row in _cells(rows)]
    lines = [f"| {' | '.join(row)} |" for row in [rows.column_names, rule, *body]]
    return "\n".join(lines).encode() + b"\n"


def _csv(rows: pa.Table) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(rows.column_names)
    for row in _values(rows):
        writer.writerow([json.dumps(cell, default=str) if isinstance(cell, list | dict) else cell for cell in row])
    return buffer.getvalue().encode()


def _json(rows: pa.Table) -> bytes:
    records = [dict(zip(rows.column_names, row, strict=True)) for row in _values(rows)]
    return json.dumps(records, indent=1, default=str, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _parquet(rows: pa.Table) -> bytes:
    import pyarrow.parquet as pq

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


def _values(rows: pa.Table) -> list[list[Any]]:
    # By position, because a query may give two columns one name.
    columns = [[_plain(value) for value in column.to_pylist()] for column in rows.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, float) and value != value:  # JSON has no NaN; an SQL expression may yield one
        return None
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return dict(value)
    return value


def _cells(rows: pa.Table) -> list[list[str]]:
    return [[_text(value) for value in row] for row in _values(rows)]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(str(value).split())


def _numeric(rows: pa.Table) -> list[bool]:
    import pyarrow.types as types

    return [types.is_integer(kind) or types.is_floating(kind) for kind in rows.schema.types]


def _aligned(row: list[str], widths: list[int], numeric: list[bool]) -> str:
    cells = zip(row, widths, numeric, strict=True)
    return "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in cells).rstrip()
