"""Build the catalog ``results.duckdb`` from the results files, and replace the old catalog atomically."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from storage.digest import digest_of
from storage.results.descriptions import add_comments, quoted, view_files
from storage.results.layout import arrow_files, broken, check_file, find_files, footer
from storage.results.tables import MEASUREMENTS, TABLES, Table
from storage.root import Entry, StoreRoot

CATALOG = "results.duckdb"
# Tables with at most this many rows are copied into the catalog, so that the catalog can be moved. A table with too
# many rows to copy is a view over its results files.
MATERIALIZE_UP_TO = 2_000_000
# DuckDB's published command-line client is one release behind the library and cannot read a newer format.
_STORAGE_VERSION = "v1.5.0"
_RAW = ("block_launch", "block_round", "block_s", "cold_launch", "cold_s")
_KEYS = "run_id, night, workload, recipe, runtime, setting, threads, batch_size, fingerprint, sequence_length"
_RAW_BLOCKS = ("internal.raw_blocks", f"{_KEYS}, {', '.join(_RAW)}")


def refresh(root: StoreRoot | Path | str, *, materialize_up_to: int = MATERIALIZE_UP_TO) -> str:
    """Build the catalog, replace the old catalog, and return the new catalog's path or URL.

    Connections that are already open keep the old catalog. The views in a large catalog refer to files by absolute
    path. `open_catalog` detects that the store has moved. Before other programs open the catalog of a moved store, run
    ``nightquant store compact`` once.

    On one host, callers wait for each other, so that an old catalog never replaces a newer catalog. On an object store,
    the files are listed again after publishing, and the catalog is rebuilt if another host has added files.
    """
    root = StoreRoot.of(root)
    with root.lock("catalog"):
        while True:
            with tempfile.TemporaryDirectory(prefix="nightquant-") as scratch:
                built = Path(scratch) / CATALOG
                listed = build(root, built, materialize_up_to=materialize_up_to)
                root.put(CATALOG, built)
            if root.local is not None or listed == current_names(root):
                return root.uri(CATALOG)


def current_names(root: StoreRoot) -> list[str]:
    """Return the names of the results files that together contain every row exactly once."""
    return [entry.name for table in TABLES.values() for entry in find_files(root, table).current]


def build(root: StoreRoot, target: Path, *, materialize_up_to: int = MATERIALIZE_UP_TO) -> list[str]:
    """Write a catalog of the store's current results to a new local file; return the names of the results files."""
    target.write_bytes(_empty())
    with _changed(target) as connection:
        if filesystem := root.filesystem():
            connection.register_filesystem(filesystem)
        names: list[str] = []
        names_files = False
        for table in TABLES.values():
            files = find_files(root, table).current
            footers = [footer(root, entry) for entry in files]
            fill = _copy_rows if sum(metadata.num_rows for metadata in footers) <= materialize_up_to else _name_files
            for entry in files if fill is _copy_rows else ():
                check_file(root, entry.name)
            if files:
                fill(connection, root, table, files, footers, table.name, _columns(table))
            if files and table.name == MEASUREMENTS.name:
                fill = fill if sum(map(_count_samples, footers)) <= materialize_up_to else _name_files
                fill(connection, root, table, files, footers, *_RAW_BLOCKS, "where block_s is not null")
            names_files |= fill is _name_files
            for entry in files:
                row = [table.name, entry.name, entry.size]
                connection.execute("insert into internal.catalog_files values (?, ?, ?)", row)
            names += [entry.name for entry in files]
        if names_files:
            connection.execute("insert into internal.catalog_root values (?)", [root.url])
            add_comments(connection)
    return names


@cache
def _empty() -> bytes:
    """Return an empty catalog; it is cached, because creating the views takes longer than inserting a night's rows."""
    with tempfile.TemporaryDirectory(prefix="nightquant-") as scratch:
        file = Path(scratch) / CATALOG
        with _changed(file) as connection:
            connection.execute("create schema internal")  # SHOW TABLES omits internal tables
            connection.execute("create table internal.catalog_files (table_name text, name text, bytes bigint)")
            connection.execute("create table internal.catalog_root (url text)")
            connection.execute(
                "create table internal.catalog_version as select $version as version", {"version": version()}
            )
            for table in TABLES.values():
                connection.register("empty", table.schema.empty_table())
                connection.execute(f"create table {table.name} as select {_columns(table)} from empty")
                if table.name == MEASUREMENTS.name:
                    name, columns = _RAW_BLOCKS
                    connection.execute(f"create table {name} as select {columns} from empty")
                connection.unregister("empty")
            for statement in view_files().values():
                connection.execute(statement)
            add_comments(connection)
        return file.read_bytes()


@contextmanager
def _changed(file: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a local catalog, or create one, in a transaction that is committed when the ``with`` block ends."""
    with duckdb.connect() as connection:
        connection.execute(f"attach '{quoted(str(file))}' as catalog (storage_version '{_STORAGE_VERSION}')")
        connection.execute("use catalog")
        connection.execute("begin")
        yield connection
        connection.execute("commit")
        connection.execute("use memory")
        connection.execute("detach catalog")


def _columns(table: Table) -> str:
    return ", ".join(column.name for column in table.columns if column.name not in _RAW)


@cache
def version() -> str:
    """Return a digest of the catalog's columns and views; a catalog with a different digest must be rebuilt."""
    tables = {table.name: [f"{column.name} {column.type}" for column in table.columns] for table in TABLES.values()}
    return digest_of({"tables": tables, "views": view_files()})


def _count_samples(metadata: pq.FileMetaData) -> int:
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    chunks = (group.column(index) for group in groups for index in range(group.num_columns))
    return sum(chunk.num_values for chunk in chunks if chunk.path_in_schema.startswith("block_s."))


def _copy_rows(
    connection: duckdb.DuckDBPyConnection,
    root: StoreRoot,
    table: Table,
    files: Sequence[Entry],
    footers: Sequence[pq.FileMetaData],
    name: str,
    columns: str,
    where: str = "",
) -> None:
    """Insert the files' rows into the table called `name`."""
    filesystem, base = arrow_files(root)
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    # With a fixed schema, columns that an old file lacks are NULL, and each file is opened only once.
    data = ds.dataset(
        [f"{base}/{entry.name}" for entry in files],
        schema=table.schema,
        format=ds.ParquetFileFormat(default_fragment_scan_options=options),
        filesystem=filesystem,
    )
    connection.register("current_files", data)
    try:
        connection.execute(f"insert into {name} select {columns} from current_files {where}")
    except (duckdb.IOException, duckdb.InvalidInputException, pa.ArrowException) as error:
        raise broken(root, f"results/{table.name}", error) from error
    finally:
        connection.unregister("current_files")


def _name_files(
    connection: duckdb.DuckDBPyConnection,
    root: StoreRoot,
    table: Table,
    files: Sequence[Entry],
    footers: Sequence[pq.FileMetaData],
    name: str,
    columns: str,
    where: str = "",
) -> None:
    """Replace the table called `name` with a view over the files."""
    connection.execute(f"drop table {name}")
    paths = ", ".join(f"'{quoted(root.uri(entry.name))}'" for entry in files)
    # Use DuckDB's type names, so that a column missing from all files is NULL with the correct type.
    types = connection.from_arrow(table.schema.empty_table())
    typed = dict(zip(types.columns, types.types, strict=True))
    missing = set(table.schema.names).difference(*(metadata.schema.to_arrow_schema().names for metadata in footers))
    absent = "".join(f", null::{typed[column]} as {column}" for column in sorted(missing))
    connection.execute(
        f"create view {name} as select {columns} "
        f"from (select *{absent} from read_parquet([{paths}], hive_partitioning = false, union_by_name = true)) {where}"
    )
