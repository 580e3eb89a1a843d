"""Append results: check a run's rows, and write one Parquet file per run, table and part."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import StoreError
from storage.results import Row
from storage.results.layout import PLACEHOLDER, find_files, folder, part_name, sealed
from storage.results.tables import TABLES, Table
from storage.results.values import admit, array_of
from storage.root import StoreRoot

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ROW_GROUP = 122_880  # rows per row group (DuckDB's default); threads scan different row groups in parallel


class ResultsStore:
    """A writer that adds results files to a store."""

    def __init__(self, root: StoreRoot | Path | str) -> None:
        self.root = StoreRoot.of(root)

    def append(self, table: str, rows: Sequence[Row], run_id: str, published: datetime, part: str = "") -> str:
        """Write one run's rows of a table to a file, unless the store has them, and return the file's path or URL.

        `published` determines the month in the file's path. `part` names the workload if the rows are about only one
        workload. Raise `StoreError` and write nothing if a row is invalid.
        """
        layout = _layout(table, run_id, published)
        name, _ = self._put(layout, validated(layout, rows, run_id), part_name(run_id, part), published)
        return self.root.uri(name)

    def record(
        self,
        tables: Mapping[str, Sequence[Row]],
        run_id: str,
        published: datetime,
        report: Callable[[str], None] = lambda line: None,
        part: str = "",
    ) -> None:
        """Write one run's rows of several tables to files (see `append`); skip tables without rows.

        An invalid value becomes NULL, and an invalid row is dropped (see `storage.results.values`). `report` receives a
        line about each of them. Raise `StoreError` if some tables could not be written, after the other tables.
        """
        failures: list[Exception] = []
        for table, rows in tables.items():
            try:
                for line in self._record(table, rows, run_id, published, part) if rows else ():
                    report(line)
            except Exception as error:  # noqa: BLE001 - raised below, once the other tables are written
                failures.append(error)
        if failures:
            first, *further = failures
            for failure in further:
                first.add_note(str(failure))
            raise first

    def _record(self, table: str, rows: Sequence[Row], run_id: str, published: datetime, part: str) -> list[str]:
        """Write one table's rows; return the lines about invalid rows, or ``[]`` if the store already has the rows."""
        layout = _layout(table, run_id, published)
        _refuse_defects(layout, rows, run_id)
        accepted, lines = admit(layout, rows)
        content = validated(layout, accepted, run_id)
        _, is_new = self._put(layout, content, part_name(run_id, part), published)
        return lines if is_new else []

    def _put(self, table: Table, rows: pa.Table, stem: str, published: datetime) -> tuple[str, bool]:
        content = serialized(table, rows)
        name = f"{folder(table)}/month={published.astimezone(UTC):%Y-%m}/{stem}.parquet"
        existing = find_files(self.root, table).file_of(stem)
        if existing is None:
            self.root.put_new(name, content)
        return (name, True) if existing is None else (existing.name, False)


def _layout(table: str, run_id: str, published: datetime) -> Table:
    if table not in TABLES:
        raise StoreError(f'There is no table "{table}".', hint=f"Use one of these tables: {', '.join(TABLES)}.")
    if not _RUN_ID.fullmatch(run_id) or run_id.startswith("compacted-"):
        raise StoreError(
            f"{run_id!r} is not a valid run id.",
            hint="Use only letters, digits, dots, dashes and underscores, and begin with a letter or a digit. The "
            'prefix "compacted-" is reserved.',
        )
    if published.tzinfo is None:
        raise StoreError(f"The publication time {published} lacks a time zone.", hint="Pass datetime.now(UTC).")
    return TABLES[table]


def serialized(table: Table, rows: pa.Table) -> bytes:
    """Return a Parquet file of the rows, with zstd compression, page checksums and the file's digest."""
    leaves = [leaf for field in table.schema for leaf in _leaves(field.name, field.type)]
    text = [path for path, type_ in leaves if pa.types.is_string(type_)]
    real = [path for path, type_ in leaves if pa.types.is_floating(type_)]
    buffer = io.BytesIO()
    with pq.ParquetWriter(
        buffer,
        rows.schema,
        compression="zstd",
        use_dictionary=text,  # type: ignore[arg-type]  # the stubs miss that a list of columns is allowed
        column_encoding=dict.fromkeys(real, "BYTE_STREAM_SPLIT"),
        write_page_checksum=True,
    ) as writer:
        writer.write_table(rows, row_group_size=_ROW_GROUP)
        writer.add_key_value_metadata(PLACEHOLDER)
    return sealed(buffer.getvalue())


def _leaves(path: str, type_: pa.DataType) -> list[tuple[str, pa.DataType]]:
    # Use Parquet's names for the leaves of nested columns, because encodings are chosen per leaf.
    if pa.types.is_map(type_):
        return [(f"{path}.key_value.key", type_.key_type), (f"{path}.key_value.value", type_.item_type)]
    if pa.types.is_list(type_):
        return [(f"{path}.list.element", type_.value_type)]
    return [(path, type_)]


def validated(table: Table, rows: Sequence[Row], run_id: str) -> pa.Table:
    """Convert rows to an Arrow table with the schema and the sort order of `table`; raise `StoreError` if invalid."""
    _refuse_defects(table, rows, run_id)
    arrays = []
    for column in table.columns:
        values = [row.get(column.name) for row in rows]
        try:
            array = array_of(column, values)
        except ValueError as error:
            raise _refused(table, f"column {column.name}: {error}") from error
        if not column.nullable and array.null_count:
            raise _refused(table, f"column {column.name} is NULL in row {values.index(None)}")
        arrays.append(array)
    checked = pa.Table.from_arrays(arrays, schema=table.schema)
    keys = checked.select(list(table.key)).group_by(list(table.key)).aggregate([])
    if keys.num_rows != len(rows):
        doubled = len(rows) - keys.num_rows
        raise _refused(table, f"{doubled} rows share ({', '.join(table.key)}) with another row")
    return checked.sort_by([(name, "ascending") for name in table.order])


def _refuse_defects(table: Table, rows: Sequence[Row], run_id: str) -> None:
    """Refuse rows that only a defect in the code can produce."""
    required = {column.name for column in table.columns if not column.nullable}
    for position, row in enumerate(rows):
        if unknown := sorted(set(row) - table.names):
            raise _refused(table, f"row {position} has unknown columns {unknown}")
        if absent := sorted(required - set(row)):
            raise _refused(table, f"row {position} lacks columns {absent}")
        if row["run_id"] != run_id:
            raise _refused(table, f"row {position} has run_id {row['run_id']!r} in a file of run {run_id!r}")


def _refused(table: Table, reason: str) -> StoreError:
    return StoreError(f"The rows for the table {table.name} were rejected: {reason}.", hint="Nothing was written.")
