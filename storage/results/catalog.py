"""Build the catalog ``results.duckdb`` from the results files, and describe its tables, views and columns.

The descriptions become the catalog's comments, ``nightquant query --list`` and ``docs/results.md``.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path

import duckdb
import pyarrow as pa

from storage.digest import digest_of
from storage.results import STOLEN_SHARE, WAITED_SHARE
from storage.results.layout import find_files, listed_again, read_rows
from storage.results.tables import MEASUREMENTS, TABLES, Table
from storage.root import StoreRoot

CATALOG = "results.duckdb"
# DuckDB's published command-line client is one release behind the library and cannot read a newer format.
_STORAGE_VERSION = "v1.5.0"
# Lists of timings, which the catalog's copy of ``measurements`` omits; the ``samples`` view reads another table.
_RAW = ("block_launch", "block_round", "block_s")
_BLOCKS = (
    "select run_id, night, workload, recipe, runtime, setting, threads, batch_size, fingerprint, block_launch, "
    "block_round, block_s from current_rows where block_s is not null"
)
_SHARE = re.compile(r"{(\w+_SHARE)}")
_COLUMN = re.compile(r"^column (\w+): (.+)$")


def refresh(root: StoreRoot | Path | str) -> str:
    """Build the catalog, replace the old one, which open connections keep, and return the new one's path or URL.

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
            current = [entry.name for table in TABLES.values() for entry in find_files(root, table).current]
            if root.local is not None or listed == current:
                return root.uri(CATALOG)


def build(root: StoreRoot, target: Path) -> list[str]:
    """Copy the store's current results to a new catalog in a local file; return the names of the results files."""
    return listed_again(lambda: _build(root, target))


def _build(root: StoreRoot, target: Path) -> list[str]:
    target.write_bytes(_empty())
    names: list[str] = []
    with _changed(target) as connection:
        for table in TABLES.values():
            files = [entry.name for entry in find_files(root, table).current]
            if files:
                rows = pa.concat_tables(read_rows(root, table, name) for name in files)
                connection.register("current_rows", rows)
                connection.execute(f"insert into {table.name} select {_columns(table)} from current_rows")
                if table.name == MEASUREMENTS.name:
                    connection.execute(f"insert into internal.raw_blocks {_BLOCKS}")
                connection.unregister("current_rows")
            names += files
    return names


@cache
def _empty() -> bytes:
    """Return an empty catalog; it is cached, because creating the views takes longer than inserting a night's rows."""
    with tempfile.TemporaryDirectory(prefix="nightquant-") as scratch:
        file = Path(scratch) / CATALOG
        with _changed(file) as connection:
            connection.execute("create schema internal")  # SHOW TABLES omits internal tables
            connection.execute(
                "create table internal.catalog_version as select $version as version", {"version": version()}
            )
            for table in TABLES.values():
                connection.register("current_rows", table.schema.empty_table())
                connection.execute(f"create table {table.name} as select {_columns(table)} from current_rows")
                if table.name == MEASUREMENTS.name:
                    connection.execute(f"create table internal.raw_blocks as {_BLOCKS}")
                connection.unregister("current_rows")
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


@dataclass(frozen=True)
class Described:
    """A table or view, with an example query; ``columns`` describes the columns that exist only in the view."""

    name: str
    kind: str
    meaning: str
    example: str
    columns: dict[str, str] = field(default_factory=dict)


def described() -> list[Described]:
    """Describe the tables and views, each with an example."""
    tables = [
        Described(table.name, "table", table.meaning, f"select * from {table.name} limit 5")
        for table in TABLES.values()
    ]
    return tables + [_view(name, sql) for name, sql in view_files().items()]


def view_files() -> dict[str, str]:
    """Return the SQL of the views, keyed by file name; each view comes after the views that it reads."""
    folder = resources.files("storage.results") / "views"
    items = sorted((item for item in folder.iterdir() if item.name.endswith(".sql")), key=lambda item: item.name)
    shares = {"WAITED_SHARE": str(WAITED_SHARE), "STOLEN_SHARE": str(STOLEN_SHARE)}
    return {item.name: _SHARE.sub(lambda match: shares[match[1]], item.read_text(encoding="utf-8")) for item in items}


def add_comments(connection: duckdb.DuckDBPyConnection) -> None:
    """Add comments to every table, view and column of the connection's current catalog."""
    listed = connection.execute(
        "select table_name, column_name, table_name in (select view_name from duckdb_views()) from duckdb_columns() "
        "where database_name = current_database() and schema_name = 'main'"
    ).fetchall()
    kinds = {name: "view" if is_view else "table" for name, _, is_view in listed}
    meanings = {item.name: item.meaning for item in described()}
    for name, kind in kinds.items():
        connection.execute(f"comment on {kind} {name} is '{quoted(meanings[name])}'")
    explained = {name: _columns_of(name) for name in kinds}
    for name, column, _ in listed:
        if meaning := explained[name].get(column):
            connection.execute(f"comment on column {name}.{column} is '{quoted(meaning)}'")


def quoted(text: str) -> str:
    """Escape text for use between single quotes in SQL."""
    return text.replace("'", "''")


def _view(file: str, sql: str) -> Described:
    # The SQL comments give the view's meaning, an example, and descriptions of the columns that only the view has.
    comments = [line.removeprefix("--").strip() for line in sql.splitlines() if line.startswith("--")]
    meaning, _, rest = "\n".join(comments).partition("\nexample: ")
    example, *lines = rest.splitlines()
    columns = {match[1]: match[2] for line in lines if (match := _COLUMN.match(line))}
    return Described(Path(file).stem.partition("_")[2], "view", meaning.replace("\n", " "), example, columns)


def _columns_of(name: str) -> dict[str, str]:
    """Return each column's meaning; a view's columns are described in its file or in the tables that it reads."""
    if table := TABLES.get(name):
        return _meanings(table)
    view, sql = next((view, sql) for file, sql in view_files().items() if (view := _view(file, sql)).name == name)
    words = re.findall(r"\w+", sql)
    named = [TABLES[word] for word in words if word in TABLES]
    meanings: dict[str, str] = {}
    for table in (*named, MEASUREMENTS, *TABLES.values()):
        meanings = _meanings(table) | meanings
    return meanings | view.columns


def _meanings(table: Table) -> dict[str, str]:
    return {
        column.name: f"{column.description} [{column.unit}]" if column.unit else column.description
        for column in table.columns
    }
