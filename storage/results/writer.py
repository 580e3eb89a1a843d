"""Append results: check a run's rows, and write one Parquet file per run, table and part.

An invalid value becomes NULL, and ``unknown`` gives the reason, so that the other values and rows are kept. A row is
dropped only if it lacks a required value or repeats a key.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.errors import StoreError, printable
from storage.results import UNKNOWN, Cell, Row, candidate_of
from storage.results.layout import PLACEHOLDER, find_files, folder, part_name, sealed
from storage.results.tables import TABLES, Column, Table
from storage.root import StoreRoot

_RUN_ID = re.compile(r"(?!compacted-)[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# Smallest and largest allowed value for each unit. Differences are in the metric's own unit and are not bounded.
_BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("seconds", "bytes", "samples", "tokens", "parameters", "modules", "workloads"), (0, inf)),
    **dict.fromkeys(("candidates", "blocks", "calls", "launches", "rounds", "busy threads"), (0, inf)),
    **dict.fromkeys(("threads", "rank", "trials"), (1, inf)),
    "ratio": (5e-324, inf),
    "share": (0, 1),
    # A distance is measured in multiples of an output's range, so it can exceed 1.
    "ranges": (0, inf),
}
_DEFECT = "Nothing was written. Report this message, because only a defect in nightquant causes it."
_NAMED = 3  # a message names at most this many rows and counts the others


class ResultsStore:
    """A writer that adds results files to a store."""

    def __init__(self, root: StoreRoot | Path | str) -> None:
        self.root = StoreRoot.of(root)

    def append(
        self,
        table: str,
        rows: Sequence[Row],
        run_id: str,
        published: datetime,
        part: str = "",
        report: Callable[[str], None] = lambda line: None,
    ) -> str:
        """Write one run's rows of a table to a file, unless the store has them, and return the file's path or URL.

        `published` determines the month in the file's path. `part` names the workload if the rows are about only one
        workload. `report` receives a line about each invalid value, which becomes NULL, and each row that is dropped.
        """
        layout = TABLES[table]
        if not _RUN_ID.fullmatch(run_id):
            raise StoreError(
                f"{run_id!r} is not a valid run id.",
                hint="Use up to 128 letters, digits, dots, hyphens and underscores, beginning with a letter or digit.",
            )
        content, lines = validated(layout, rows, run_id)
        name = part_name(run_id, part)
        files = find_files(self.root, layout)
        if name in files.names:
            return self.root.uri(files.file_of(name).name)
        path = f"{folder(layout)}/month={published.astimezone(UTC):%Y-%m}/{name}.parquet"
        self.root.put_new(path, serialized(content))
        for line in lines:
            report(line)
        return self.root.uri(path)

    def record(
        self,
        tables: Mapping[str, Sequence[Row]],
        run_id: str,
        published: datetime,
        report: Callable[[str], None] = lambda line: None,
        part: str = "",
    ) -> None:
        """Append one run's rows of several tables, without the tables that have no rows (see `append`).

        Raise `StoreError` if some tables could not be written, after the other tables.
        """
        failures: list[Exception] = []
        for table, rows in tables.items():
            try:
                if rows:
                    self.append(table, rows, run_id, published, part, report)
            except Exception as error:  # noqa: BLE001 - raised below, once the other tables are written
                failures.append(error)
        if failures:
            first, *further = failures
            for failure in further:
                first.add_note(str(failure))
            raise first


def serialized(rows: pa.Table) -> bytes:
    """Return the bytes of a results file with the table's rows; equal rows give equal bytes."""
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, rows.schema, compression="zstd", write_page_checksum=True) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(PLACEHOLDER)
    return sealed(buffer.getvalue())


def validated(table: Table, rows: Sequence[Row], run_id: str) -> tuple[pa.Table, list[str]]:
    """Return the rows that the table accepts (see `known`), sorted, and messages about the rejected values and rows.

    Raise `StoreError` if a row belongs to another run or has an unknown column, which only a defect can cause.
    """
    for row in rows:
        if (unknown := sorted(set(row) - table.names)) or row.get("run_id") != run_id:
            why = f"unknown columns {unknown}" if unknown else f"the run id {row.get('run_id')!r}, not {run_id!r}"
            raise StoreError(f"A row for the table {table.name} has {why}.", hint=_DEFECT)
    accepted, lines = admit(table, rows)
    arrays = [array_of(column, [row.get(column.name) for row in accepted]) for column in table.columns]
    content = pa.Table.from_arrays(arrays, schema=table.schema)
    return content.sort_by([(name, "ascending") for name in table.order]), lines


def array_of(column: Column, values: Sequence[Cell]) -> pa.Array[pa.Scalar[pa.DataType]]:
    """Convert values to an Arrow array; raise `ValueError`, with the value and the reason, if one is invalid."""
    try:
        array = pa.array(values, column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"not {column.type}: {error}") from error
    for value in values if column.choices else ():
        if value not in (None, *column.choices):
            raise ValueError(f"{value!r} is not one of {', '.join(column.choices)}")
    for value in values if pa.types.is_integer(column.type) else ():
        if isinstance(value, float) and not value.is_integer():  # Arrow would truncate the value
            raise ValueError(f"{value} is not a whole number")
    numbers = array
    if isinstance(array, pa.ListArray):  # includes maps
        numbers = array.items if isinstance(array, pa.MapArray) else array.flatten()
    if pa.types.is_floating(numbers.type) and len(bad := numbers.filter(pc.invert(pc.is_finite(numbers)))):
        raise ValueError(f"{bad[0].as_py()} is not a finite number")  # NaN would be the maximum in every query
    low, high = _BOUNDS.get(column.unit, (-inf, inf))
    for value in (pc.min(numbers).as_py(), pc.max(numbers).as_py()) if column.unit in _BOUNDS else ():
        if value is not None and not low <= value <= high:
            raise ValueError(f"{value:g} is out of range for {column.unit} ({low:g} to {high:g})")
    return array


def _why_not(column: Column, values: Sequence[Cell]) -> str:
    """Return the reason that the column rejects one of the values, or ``""`` if the column accepts all values."""
    try:
        array_of(column, values)
    except ValueError as error:
        return printable(str(error))
    return ""


def known(table: Table, row: Row, columns: Iterable[Column] | None = None) -> Row:
    """Return the row with NULL in place of each invalid value in `columns`, and with the reasons in ``unknown``."""
    values, reasons = dict(row), _reasons(row)
    for column in table.columns if columns is None else columns:
        value = row.get(column.name)
        if isinstance(value, str):
            # Escape lone surrogates, which occur in file names that are not UTF-8, to keep the rest of the text.
            value = values[column.name] = value.encode("utf-8", "backslashreplace").decode("utf-8")
        if column.name != UNKNOWN and (why := _why_not(column, [value])):
            values[column.name], reasons[column.name] = None, why
    if reasons and UNKNOWN in table.names:
        values[UNKNOWN] = reasons
    return values


def admit(table: Table, rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Return the rows that the table accepts (see `known`), and messages about the rejected values and rows.

    A row that lacks a required value or repeats a key is dropped.
    """
    suspects = [column for column in table.columns if _why_not(column, [row.get(column.name) for row in rows])]
    rows = [known(table, row, suspects) for row in rows]
    # Compare the converted values, because values that differ in Python may be equal in Arrow.
    columns = [column for column in table.columns if column.name in table.key]
    keys = pa.table({column.name: array_of(column, [row.get(column.name) for row in rows]) for column in columns})
    accepted: dict[tuple[object, ...], Row] = {}
    dropped: list[str] = []
    for row, key in zip(rows, keys.to_pylist(), strict=True):
        missing = [column.name for column in table.columns if not column.nullable and row.get(column.name) is None]
        if missing:
            why = "; ".join(f"{name}: {_reasons(row).get(name, 'it is NULL')}" for name in missing)
        elif accepted.setdefault(tuple(key.values()), row) is not row:
            why = "an earlier row has the same key"
        else:
            continue
        dropped.append(f"{table.name}: the row {_label(row)} is dropped: {why}")
    return list(accepted.values()), [*_unknown(table, accepted.values()), *dropped]


def _reasons(row: Row) -> dict[str, str]:
    reasons: object = row.get(UNKNOWN)
    if not isinstance(reasons, Mapping | list | tuple):
        return {}
    return {str(name): printable(str(why)) for name, why in dict(reasons).items()}


def _unknown(table: Table, rows: Iterable[Row]) -> Iterator[str]:
    alike: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for column, why in _reasons(row).items():
            alike.setdefault((column, why), []).append(_label(row))
    for (column, why), labels in alike.items():
        more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
        yield f"{table.name} of {', '.join(labels[:_NAMED])}{more}: {column} not recorded: {why}"


def _label(row: Row) -> str:
    """Return a readable name for a row: its workload, candidate, setting, module and metric, or its run id."""
    setting = f"({row['setting']})" if row.get("setting") not in (None, "primary") else None
    parts = (row.get("workload"), candidate_of(row), setting, row.get("module"), row.get("metric"))
    return " ".join(str(part) for part in parts if part) or str(row["run_id"])
