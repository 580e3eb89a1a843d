"""Append-only writing: one Parquet file per run and table, whose rows are checked first."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.errors import StoreError
from storage.results import Cell, Row
from storage.results.checksum import PLACEHOLDER, sealed
from storage.results.layout import find_files, folder
from storage.results.tables import TABLES, Column, Table
from storage.root import StoreRoot

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ROW_GROUP = 122_880  # DuckDB's own vector of rows: one group is one unit of its parallel scan
# Smallest and largest value by unit. Differences have the metric's own unit and no bounds.
_BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("seconds", "bytes", "samples", "tokens", "parameters", "modules", "workloads"), (0, inf)),
    **dict.fromkeys(("candidates", "blocks", "calls", "launches", "rounds", "busy threads"), (0, inf)),
    **dict.fromkeys(("attempts", "threads", "rank"), (1, inf)),
    "ratio": (5e-324, inf),
    "share": (0, 1),
}


class ResultsStore:
    """The results under a store's root."""

    def __init__(self, root: StoreRoot | Path | str) -> None:
        self.root = StoreRoot.of(root)

    def append(self, table: str, rows: Sequence[Row], run_id: str, published: datetime) -> str:
        """Write one run's rows of one table; return the file's path or URL.

        If this run's rows are in the store already (its file, or in a compacted month) nothing is written and the
        existing file is returned, so that a retried run never counts twice. `published` decides the month's folder.
        """
        if table not in TABLES:
            raise StoreError(f'There is no table "{table}".', hint=f"Expected one of: {', '.join(TABLES)}.")
        layout = TABLES[table]
        if not _RUN_ID.fullmatch(run_id) or run_id.startswith("compacted-"):
            raise StoreError(
                f"{run_id!r} is not a valid run id.", hint="Use letters, digits, dots, dashes, underscores."
            )
        if published.tzinfo is None:
            raise StoreError("The time of publication has no time zone.", hint="Pass datetime.now(UTC).")
        content = serialized(layout, validated(layout, rows, run_id))
        name = f"{folder(layout)}/month={published.astimezone(UTC):%Y-%m}/{run_id}.parquet"
        # Shared: writers never wait for each other, only for the instant in which a compacted month is swapped in.
        with self.root.lock("results", shared=True):
            existing = find_files(self.root, layout).file_of(run_id)
            if existing is None:
                self.root.put_new(name, content)
        return self.root.uri(existing.name if existing else name)


def serialized(table: Table, rows: pa.Table) -> bytes:
    """Rows as a Parquet file: zstd, dictionaries for text only, byte-stream-split for floating-point numbers.

    Its pages have checksums, and all of it has a digest (see `storage.results.checksum`).
    """
    leaves = [leaf for field in table.schema for leaf in _leaves(field.name, field.type)]
    text = [path for path, type_ in leaves if pa.types.is_string(type_)]
    real = [path for path, type_ in leaves if pa.types.is_floating(type_)]
    buffer = io.BytesIO()
    with pq.ParquetWriter(
        buffer,
        rows.schema,
        compression="zstd",
        use_dictionary=text,  # type: ignore[arg-type]  # a list of columns is good too
        column_encoding=dict.fromkeys(real, "BYTE_STREAM_SPLIT"),
        write_page_checksum=True,
    ) as writer:
        writer.write_table(rows, row_group_size=_ROW_GROUP)
        writer.add_key_value_metadata(PLACEHOLDER)
    return sealed(buffer.getvalue())


def _leaves(path: str, type_: pa.DataType) -> list[tuple[str, pa.DataType]]:
    # Parquet's names for the leaves of nested columns; encodings are chosen per leaf.
    if pa.types.is_map(type_):
        return [(f"{path}.key_value.key", type_.key_type), (f"{path}.key_value.value", type_.item_type)]
    if pa.types.is_list(type_):
        return [(f"{path}.list.element", type_.value_type)]
    return [(path, type_)]


def validated(table: Table, rows: Sequence[Row], run_id: str) -> pa.Table:
    """Turn rows into an Arrow table of the table's schema, sorted by its order."""
    known = {column.name for column in table.columns}
    for position, row in enumerate(rows):
        if unknown := sorted(set(row) - known):
            raise _refused(table, f"row {position} has unknown columns {unknown}")
        if row.get("run_id") != run_id:
            raise _refused(table, f"row {position} has run_id {row.get('run_id')!r} in a file of run {run_id!r}")
    arrays = [_array(table, column, [row.get(column.name) for row in rows]) for column in table.columns]
    checked = pa.Table.from_arrays(arrays, schema=table.schema)
    keys = checked.select(list(table.key)).group_by(list(table.key)).aggregate([])
    if keys.num_rows != len(rows):
        doubled = len(rows) - keys.num_rows
        raise _refused(table, f"{doubled} rows share ({', '.join(table.key)}) with another row")
    return checked.sort_by([(name, "ascending") for name in table.order])


def _array(table: Table, column: Column, values: Sequence[Cell]) -> pa.Array[pa.Scalar[pa.DataType]]:
    try:
        array = pa.array(values, column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _refused(table, f"column {column.name} is not {column.type}: {error}") from error
    if not column.nullable and array.null_count:
        raise _refused(table, f"column {column.name} is NULL in row {values.index(None)}")
    for value in values if column.choices else ():
        if value not in (None, *column.choices):
            raise _refused(table, f"column {column.name} is {value!r}; expected one of {', '.join(column.choices)}")
    _check_numbers(table, column, array)
    return array


def _check_numbers(table: Table, column: Column, array: pa.Array[pa.Scalar[pa.DataType]]) -> None:
    if isinstance(array, pa.MapArray):
        array = array.items
    elif isinstance(array, pa.ListArray):
        array = array.flatten()
    if not (pa.types.is_floating(array.type) or pa.types.is_integer(array.type)):
        return
    if pa.types.is_floating(array.type) and pc.any(pc.invert(pc.is_finite(array))).as_py():
        raise _refused(
            table,
            f"column {column.name} holds NaN or an infinity",
            "Leave the value out (NULL) if there is none: NaN would sort first and be every maximum.",
        )
    low, high = _BOUNDS.get(column.unit, (-inf, inf))
    for value in (pc.min(array).as_py(), pc.max(array).as_py()):
        if value is not None and not low <= value <= high:
            raise _refused(table, f"column {column.name} is {value}, out of range for {column.unit}")


def _refused(table: Table, what: str, hint: str = "") -> StoreError:
    return StoreError(f"The {table.name} rows were refused: {what}.", hint=hint or "Nothing was written.")
