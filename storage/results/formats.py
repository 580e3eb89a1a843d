"""Query results as text or Parquet."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
from collections.abc import Callable
from itertools import count
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
    names = _unique(rows.column_names)
    records = [dict(zip(names, row, strict=True)) for row in _values(rows, finite=True)]
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


def _unique(names: list[str]) -> list[str]:
    """Names as DuckDB makes them unique in a table: ``a``, ``a_1``."""
    unique: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in count(1))
        taken = {*unique, *names}
        unique.append(next(other for other in numbered if other not in taken) if name in unique else name)
    return unique


def _values(rows: pa.Table, *, finite: bool = False) -> list[list[Any]]:
    # By position, because a query may give two columns one name.
    columns = [[_plain(value, finite=finite) for value in _python(column)] for column in rows.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _python(column: pa.ChunkedArray[Any]) -> list[Any]:
    try:
        return column.to_pylist(maps_as_pydicts="strict")
    except (OverflowError, ValueError):
        # Years that Python has not, an infinite time among them, and nanoseconds: as DuckDB itself writes them.
        import duckdb
        import pyarrow as pa

        with duckdb.connect() as connection:
            written = connection.from_arrow(pa.table([column], names=["value"])).project("to_json(value)").fetchall()
        return [None if text is None else json.loads(text) for (text,) in written]


def _plain(value: Any, *, finite: bool) -> Any:
    """A value of plain types; JSON has no NaN and no infinities, and lists and structs are always written as JSON."""
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, float) and (math.isnan(value) or (finite and math.isinf(value))):
        return None
    if isinstance(value, dict):
        return {str(_plain(key, finite=False)): _plain(item, finite=True) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, finite=True) for item in value]
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
