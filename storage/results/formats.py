"""Format rows as shortened text for a terminal, or as complete text, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from math import inf

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from storage.humanize import cut

_GAP = "  "
_LENGTHS = (None, 64, 40, 24)  # maximum text lengths in a table, tried in order


def formatted(rows: pa.Table, format_: str) -> bytes:
    """Write rows in one of `FORMATS`: UTF-8 text that ends with a newline, or a Parquet file.

    DuckDB converts values to JSON, in which NaN and infinities become null. Columns with the same name are numbered.
    """
    return FORMATS[format_](rows)


def fitted(rows: pa.Table, width: int) -> bytes:
    """Format rows as text of at most `width` characters: as a table if a layout fits, otherwise as records.

    Shortened text ends with "…", and the last line says how to see the complete values.
    """
    names, cells = _cells(rows)
    for most in _LENGTHS:
        lines = _aligned(rows, names, cells if most is None else _cut_texts(rows, cells, most), width)
        if lines:
            break
    else:
        most, lines = None, [cut(line, width) for line in _records(names, cells)]
    hint = ['Texts that end with "…" are cut. For complete values: --format json']
    is_cut = most is not None or any(line.endswith("…") for line in lines)
    return _encoded(cut(line, width) for line in [*lines, _count_line(rows), *(hint if is_cut else ())])


def _cells(rows: pa.Table) -> tuple[list[str], list[list[str]]]:
    """Return the columns' names, and each cell as one line, with numbers of six significant digits."""
    names, values = _values(rows)
    return names, [[_text(value) for value in row] for row in values]


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


def _cut_texts(rows: pa.Table, cells: list[list[str]], most: int) -> list[list[str]]:
    cuttable = [pa.types.is_string(kind) or pa.types.is_nested(kind) for kind in rows.schema.types]
    return [
        [cut(cell, most) if can_cut else cell for cell, can_cut in zip(row, cuttable, strict=True)] for row in cells
    ]


def _table(rows: pa.Table) -> bytes:
    return _encoded([*(_aligned(rows, *_cells(rows)) or ()), _count_line(rows)])


def _aligned(rows: pa.Table, names: list[str], cells: list[list[str]], width: float = inf) -> list[str] | None:
    """Return the table's lines, or None if a line exceeds `width`.

    The rich library is not used, because it is too slow for a million rows.
    """
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    if sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        return None
    numeric = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in rows.schema.types]

    def aligned(row: list[str]) -> str:
        columns = zip(row, widths, numeric, strict=True)
        return _GAP.join(cell.rjust(wide) if number else cell.ljust(wide) for cell, wide, number in columns).rstrip()

    return [aligned(names), _GAP.join("-" * wide for wide in widths), *map(aligned, cells)]


def _records(names: list[str], cells: list[list[str]]) -> Iterator[str]:
    wide = max(map(len, names))
    for number, row in enumerate(cells, 1):
        yield f"--- row {number:,} of {len(cells):,} ---"
        for name, cell in zip(names, row, strict=True):
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


FORMATS: dict[str, Callable[[pa.Table], bytes]] = {"table": _table, "csv": _csv, "json": _json, "parquet": _parquet}


def _values(rows: pa.Table) -> tuple[list[str], list[list[object]]]:
    """Return the columns' names and each row's JSON values; decimals become text to keep all digits."""
    columns = [column.cast(pa.string()) if pa.types.is_decimal(column.type) else column for column in rows.columns]
    with duckdb.connect() as connection:
        relation = connection.from_arrow(pa.table(columns, names=rows.column_names))
        names, written = relation.columns, relation.project("to_json(columns(*))").fetchall()
    read = json.JSONDecoder(parse_constant=lambda name: None).decode
    return names, [[None if cell is None else read(cell) for cell in row] for row in written]
