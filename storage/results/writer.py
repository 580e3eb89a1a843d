"""Append-only writing: one validated Parquet file per run and table."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import StoreError
from storage.results.layout import find_files, folder
from storage.results.tables import TABLES, Table
from storage.results.validate import validated
from storage.root import StoreRoot

_RUN_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
ROW_GROUP = 122_880  # DuckDB's own vector of rows: one group is one unit of its parallel scan


class ResultsStore:
    """The results under a store's root.

    Parameters
    ----------
    root
        A local path, an ``s3://`` URL, or an open root.
    """

    def __init__(self, root: StoreRoot | Path | str) -> None:
        self.root = StoreRoot.of(root)

    def append(self, table: str, rows: Sequence[Mapping[str, Any]], run_id: str, published: datetime) -> str:
        """Write one run's rows of one table; give the file's path or URL.

        The run id decides the name: where this run's rows are in the store already (its file, or a compacted month
        that holds it) nothing is written and the existing file is given, so that a retried run never counts twice.

        Parameters
        ----------
        rows
            Column name to value; a column that is left out is NULL.
        published
            When the rows are published, with its time zone; decides the month's folder.

        Raises
        ------
        StoreError
            The rows are not valid, or the store cannot be written.
        """
        layout = _known(table)
        if not _RUN_ID.match(run_id) or run_id.startswith("compacted-"):
            raise StoreError(f"{run_id!r} is no run id.", hint="Use letters, digits, dots, dashes and underscores.")
        if published.tzinfo is None:
            raise StoreError("The time of publication has no time zone.", hint="Pass datetime.now(UTC).")
        content = serialized(layout, validated(layout, rows, run_id))
        name = f"{folder(layout)}/month={published.astimezone(UTC):%Y-%m}/{run_id}.parquet"
        # Shared: writers never wait for each other, only for the instant in which a compacted month is swapped in.
        with self.root.lock("results", shared=True):
            existing = self._existing(layout, run_id)
            if existing is None:
                self.root.put_new(name, content)
        return self.root.uri(existing or name)

    def _existing(self, table: Table, run_id: str) -> str | None:
        files = find_files(self.root, table)
        for file in files.runs:
            if file.run_id == run_id:
                return file.entry.name
        for compacted in files.newest.values():
            if run_id in compacted.runs:
                return compacted.entry.name
        return None


def serialized(table: Table, rows: pa.Table) -> bytes:
    """A Parquet file as bytes: zstd, dictionaries for text only, byte-stream-split for floating-point numbers."""
    leaves = [leaf for field in table.schema for leaf in _leaves(field.name, field.type)]
    text = [path for path, type_ in leaves if pa.types.is_string(type_)]
    real = [path for path, type_ in leaves if pa.types.is_floating(type_)]
    buffer = io.BytesIO()
    pq.write_table(
        rows,
        buffer,
        compression="zstd",
        use_dictionary=text,  # type: ignore[arg-type]  # a list of columns is good too
        column_encoding=dict.fromkeys(real, "BYTE_STREAM_SPLIT"),
        row_group_size=ROW_GROUP,
    )
    return buffer.getvalue()


def _leaves(path: str, type_: pa.DataType) -> list[tuple[str, pa.DataType]]:
    # Parquet names the leaves of nested columns like this; encodings are chosen per leaf.
    if pa.types.is_map(type_):
        return [(f"{path}.key_value.key", type_.key_type), (f"{path}.key_value.value", type_.item_type)]
    if pa.types.is_list(type_):
        return [(f"{path}.list.element", type_.value_type)]
    return [(path, type_)]


def _known(table: str) -> Table:
    if table not in TABLES:
        raise StoreError(f'There is no table "{table}".', hint=f"Expected one of: {', '.join(TABLES)}.")
    return TABLES[table]
