"""Format rows as shortened text for a terminal, or as complete text, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from storage.humanize import cut


def formatted(rows: pa.Table, format_: str) -> bytes:
    """Write rows in one of `FORMATS`: UTF-8 text that ends with a newline, or a Parquet file.

    DuckDB converts values to JSON, in which NaN and infinities become null. Columns with the same name are numbered.
    """
    return FORMATS[format_](rows)


@dataclass(frozen=True)
class Grid:
    """Rows as text: the column names and the cells of each row; ``numeric`` marks the columns to right-align."""

    names: list[str]
    cells: list[list[str]]
    numeric: list[bool]


def grid(rows: pa.Table) -> Grid:
    """Format each cell as one line, and numbers with six significant digits."""
    names, values = _values(rows)
    numeric = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in rows.schema.types]
    return Grid(names, [[_text(value) for value in row] for row in values], numeric)


_GAP = "  "
_LENGTHS = (None, 64, 40, 24)  # maximum text lengths in a table, tried in order


def fitted(rows: pa.Table, width: int) -> bytes:
    """Format rows as text of at most `width` characters: as a table if a layout fits, otherwise as records.

    Shortened text ends with "…", and the last line says how to see the complete values.
    """
    text = grid(rows)
    cuttable = [pa.types.is_string(kind) or pa.types.is_nested(kind) for kind in rows.schema.types]
    for most in _LENGTHS:
        narrow = replace(text, cells=[_cut_row(row, cuttable, most) for row in text.cells]) if most else text
        if lines := _aligned(narrow, width):
            break
    else:
        narrow, lines = text, [cut(line, width) for line in _records(text)]
    is_cut = narrow is not text or any(line.endswith("…") for line in lines)
    hint = ['Texts that end with "…" are cut. For complete values: --format json'] if is_cut else []
    return _encoded(cut(line, width) for line in [*lines, _count_line(rows), *hint])


def _cut_row(row: list[str], cuttable: list[bool], most: int) -> list[str]:
    return [cut(cell, most) if can_cut else cell for cell, can_cut in zip(row, cuttable, strict=True)]


def _table(rows: pa.Table) -> bytes:
    return _encoded([*(_aligned(grid(rows)) or ()), _count_line(rows)])


def _aligned(text: Grid, width: float = inf) -> list[str] | None:
    """Return the table's lines, or None if a line exceeds `width`.

    The rich library is not used, because it is too slow for a million rows.
    """
    widths = [max(map(len, column)) for column in zip(text.names, *text.cells, strict=True)]
    if sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        return None

    def aligned(row: list[str]) -> str:
        cells = zip(row, widths, text.numeric, strict=True)
        padded = (cell.rjust(wide) if number else cell.ljust(wide) for cell, wide, number in cells)
        return _GAP.join(padded).rstrip()

    return [aligned(text.names), _GAP.join("-" * wide for wide in widths), *map(aligned, text.cells)]


def _records(text: Grid) -> Iterator[str]:
    wide = max(map(len, text.names))
    for number, row in enumerate(text.cells, 1):
        yield f"--- row {number:,} of {len(text.cells):,} ---"
        for name, cell in zip(text.names, row, strict=True):
            yield f"{name.ljust(wide)}  {cell}".rstrip()


def _count_line(rows: pa.Table) -> str:
    return f"({rows.num_rows:,} row{'' if rows.num_rows == 1 else 's'})"


def _encoded(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


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
    "parquet": _parquet,
}


def _values(rows: pa.Table) -> tuple[list[str], list[list[object]]]:
    """Return the columns' names and each row's JSON values; decimals become text to keep all digits."""
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
