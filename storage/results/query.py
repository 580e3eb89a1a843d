"""Open a copy of the catalog, so that queries cannot change the store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from storage.errors import ConfigurationError, StoreError
from storage.results import Row
from storage.results.catalog import CATALOG, build, quoted, version
from storage.root import StoreRoot


class QueryError(ConfigurationError):
    """DuckDB refuses the SQL."""


@contextmanager
def open_catalog(root: StoreRoot | Path | str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a copy of the store's catalog for reading; yield a connection that has access to no other file.

    If the catalog is missing, or another version of nightquant built it, the function builds a temporary catalog.
    """
    root = StoreRoot.of(root)
    with tempfile.TemporaryDirectory(prefix="nightquant-") as scratch:
        # DuckDB denies access to all files except the attached one. COPY could overwrite even that file.
        catalog = Path(scratch) / CATALOG
        if root.exists(CATALOG):
            root.download(CATALOG, catalog)
        elif root.list("results"):
            build(root, catalog)
        else:
            raise StoreError(
                f"The store {root.url} has no results.",
                hint="Run nightquant nightly first, or choose another store with --store.",
            )
        with _opened(root, catalog) as connection:
            yield connection


@contextmanager
def open_fresh(root: StoreRoot | Path | str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Build and open a temporary catalog of the store's current results, even if the store's disk is full."""
    root = StoreRoot.of(root)
    with tempfile.TemporaryDirectory(prefix="nightquant-") as scratch:
        build(root, Path(scratch) / CATALOG)
        with _opened(root, Path(scratch) / CATALOG) as connection:
            yield connection


@contextmanager
def _opened(root: StoreRoot, catalog: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    # Connections that open the same file would share one database and its locked settings, so attach the file.
    with duckdb.connect() as connection:
        try:
            if not _attach(connection, catalog):
                connection.execute("use memory")
                connection.execute("detach results")
                catalog.unlink()
                build(root, catalog)
                _attach(connection, catalog)
            connection.execute("set enable_external_access = false")
            connection.execute("set lock_configuration = true")
            yield connection
        except duckdb.Error as error:
            if not _is_damage(error):
                raise
            raise StoreError(
                f"The catalog {root.uri(CATALOG)} cannot be read: {str(error).rstrip('.')}.",
                hint="Rebuild the catalog with nightquant store compact.",
            ) from error


def rows_of(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: object) -> list[Row]:
    """Run a query with ``$name`` parameters; return the rows as dictionaries."""
    cursor = connection.execute(sql, parameters or None)
    names = [column[0] for column in cursor.description or []]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def run_query(root: StoreRoot | Path | str, sql: str) -> pa.Table:
    """Run SQL on a copy of the catalog; return the rows of the last statement."""
    with open_catalog(root) as connection:
        try:
            result: pa.Table | None = None
            for statement in connection.extract_statements(sql):
                relation = connection.sql(statement)
                result = relation.to_arrow_table() if relation is not None else None
        except duckdb.Error as error:
            if _is_damage(error):
                raise
            raise QueryError(str(error)) from error
    if result is None:
        raise QueryError("The query is empty.", hint='Pass a query, for example: nightquant query "from leaderboard"')
    return result


def _attach(connection: duckdb.DuckDBPyConnection, path: Path) -> bool:
    """Attach a catalog; return whether this version of nightquant built it."""
    connection.execute(f"attach '{quoted(str(path))}' as results (read_only)")
    connection.execute("use results")
    try:
        return connection.execute("select version from internal.catalog_version").fetchone() == (version(),)
    except duckdb.CatalogException:
        return False


def _is_damage(error: duckdb.Error) -> bool:
    # DuckDB raises its base error class for a wrong checksum, and ``IOException`` for a truncated file.
    return isinstance(error, duckdb.IOException) or str(error).startswith("Corrupt database file")
