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

from storage.digest import digest_of
from storage.results.descriptions import add_comments, quoted, view_files
from storage.results.layout import arrow_files, broken, checked, find_files
from storage.results.tables import MEASUREMENTS, TABLES, Table
from storage.root import Entry, StoreRoot

CATALOG = "results.duckdb"
# DuckDB's published command-line client is one release behind the library and cannot read a newer format.
_STORAGE_VERSION = "v1.5.0"
_RAW = ("block_launch", "block_round", "block_s", "cold_launch", "cold_s")
_KEYS = "run_id, night, workload, recipe, runtime, setting, threads, batch_size, fingerprint, sequence_length"
_RAW_BLOCKS = ("internal.raw_blocks", f"{_KEYS}, {', '.join(_RAW)}")


def refresh(root: StoreRoot | Path | str) -> str:
    """Build the catalog, replace the old catalog, and return the new catalog's path or URL.

    Connections that are already open keep the old catalog.

    On one host, callers wait for each other, so that an old catalog never replaces a newer catalog. On an object store,
    the files are listed again after publishing, and the catalog is rebuilt if another host has added files.
    """
    root = StoreRoot.of(root)
    with root.lock("catalog"):
        while True:
            with tempfile.TemporaryDirectory(prefix="nightquant-") as scratch:
                built = Path(scratch) / CATALOG
                listed = build(root, built)
                root.put(CATALOG, built)
            if root.local is not None or listed == current_names(root):
                return root.uri(CATALOG)


def current_names(root: StoreRoot) -> list[str]:
    """Return the names of the results files that together contain every row exactly once."""
    return [entry.name for table in TABLES.values() for entry in find_files(root, table).current]


def build(root: StoreRoot, target: Path) -> list[str]:
    """Copy the store's current results to a new catalog in a local file; return the names of the results files."""
    target.write_bytes(_empty())
    with _changed(target) as connection:
        names: list[str] = []
        for table in TABLES.values():
            files = find_files(root, table).current
            for entry in files:
                checked(root, entry.name)
                row = [table.name, entry.name, entry.size]
                connection.execute("insert into internal.catalog_files values (?, ?, ?)", row)
            if files:
                _copy_rows(connection, root, table, files, table.name, _columns(table))
            if files and table.name == MEASUREMENTS.name:
                _copy_rows(connection, root, table, files, *_RAW_BLOCKS, "where block_s is not null")
            names += [entry.name for entry in files]
    return names


@cache
def _empty() -> bytes:
    """Return an empty catalog; it is cached, because creating the views takes longer than inserting a night's rows."""
    with tempfile.TemporaryDirectory(prefix="nightquant-") as scratch:
        file = Path(scratch) / CATALOG
        with _changed(file) as connection:
            connection.execute("create schema internal")  # SHOW TABLES omits internal tables
            connection.execute("create table internal.catalog_files (table_name text, name text, bytes bigint)")
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


def _copy_rows(
    connection: duckdb.DuckDBPyConnection,
    root: StoreRoot,
    table: Table,
    files: Sequence[Entry],
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
