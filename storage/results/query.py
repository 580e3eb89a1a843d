"""Open the catalog so that queries cannot change the store."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from storage.errors import ConfigurationError, StoreError
from storage.results import Row
from storage.results.catalog import CATALOG, build, version
from storage.results.descriptions import quoted
from storage.root import StoreRoot

_READING = frozenset({duckdb.StatementType.SELECT, duckdb.StatementType.PRAGMA})
# A permitted statement can still run COPY, either in a WITH clause or through a function that executes text as SQL.
# DuckDB cannot write-protect individual files, so COPY could replace the catalog or a results file.
_HIDING = re.compile(r"\b(copy|query|json_execute_serialized_sql)\b", re.IGNORECASE)
_EXPLAIN = re.compile(r"^\s*explain(\s+analyze|\s*\([^)]*\))?\s", re.IGNORECASE)


class QueryError(ConfigurationError):
    """The SQL is invalid or is not read-only; the message often comes from DuckDB."""


@contextmanager
def open_catalog(root: StoreRoot | Path | str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the store's catalog for reading; yield a connection whose settings are locked.

    The connection can read only the catalog and the results files that the catalog names. If the catalog is missing or
    refers to files in another store, the function builds a temporary catalog.
    """
    root = StoreRoot.of(root)
    with (
        tempfile.TemporaryDirectory(prefix="nightquant-") as scratch,
        _opened(root, _catalog_file(root, Path(scratch)), Path(scratch)) as connection,
    ):
        yield connection


@contextmanager
def open_fresh(root: StoreRoot | Path | str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Build and open a temporary catalog of the store's current results, even if the store's disk is full."""
    root = StoreRoot.of(root)
    with tempfile.TemporaryDirectory(prefix="nightquant-") as scratch:
        build(root, Path(scratch) / CATALOG)
        with _opened(root, Path(scratch) / CATALOG, Path(scratch)) as connection:
            yield connection


@contextmanager
def _opened(root: StoreRoot, catalog: Path, scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    # Attach the file to an in-memory database. If the file were opened directly, all connections of this process would
    # share one database and its locked settings.
    with duckdb.connect() as connection:
        try:
            place = _attach(connection, catalog)
            if place is not None and not _is_at(root, place):
                connection.execute("use memory")
                connection.execute("detach results")
                own = scratch / f"own-{CATALOG}"
                build(root, own)
                place = _attach(connection, own)
            if place is not None:
                if filesystem := root.filesystem():
                    connection.register_filesystem(filesystem)
                connection.execute("set allowed_directories = [$folder]", {"folder": f"{place}/results/"})
            connection.execute("set enable_external_access = false")
            connection.execute("set lock_configuration = true")
            yield connection
        except duckdb.Error as error:
            if not _is_damage(error):
                raise
            raise StoreError(
                f"The catalog {root.uri(CATALOG)}, or a results file that it lists, cannot be read: "
                f"{str(error).rstrip('.')}.",
                hint="Rebuild the catalog with nightquant store compact. To find damaged results files, run: "
                "nightquant store check",
            ) from error


def rows_of(connection: duckdb.DuckDBPyConnection, sql: str, **parameters: object) -> list[Row]:
    """Run a query with ``$name`` parameters; return the rows as dictionaries."""
    cursor = connection.execute(sql, parameters or None)
    names = [column[0] for column in cursor.description or []]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def run_query(root: StoreRoot | Path | str, sql: str) -> pa.Table:
    """Run SQL that only reads tables and views; return the rows of the last statement."""
    with open_catalog(root) as connection:
        try:
            result: pa.Table | None = None
            for statement in connection.extract_statements(sql):
                _check_reads(connection, statement)
                relation = connection.sql(statement)
                result = relation.to_arrow_table() if relation is not None else None
        except duckdb.Error as error:
            if _is_damage(error):
                raise
            raise QueryError(str(error)) from error
    if result is None:
        raise QueryError("The query is empty.", hint='Pass a query, for example: nightquant query "from leaderboard"')
    return result


def _catalog_file(root: StoreRoot, scratch: Path) -> Path:
    path = (root.local or scratch) / CATALOG
    if root.exists(CATALOG):
        if root.local is None:
            root.download(CATALOG, path)
        return path
    if not root.list("results"):
        raise StoreError(
            f"The store {root.url} has no results.",
            hint="Run nightquant nightly first, or choose another store with --store.",
        )
    build(root, scratch / CATALOG)
    return scratch / CATALOG


def _attach(connection: duckdb.DuckDBPyConnection, path: Path) -> str | None:
    """Attach a catalog; return the root of the files that it reads.

    Return ``""`` if the root is unknown, or None if the catalog does not read files.
    """
    connection.execute(f"attach '{quoted(str(path))}' as results (read_only)")
    connection.execute("use results")
    try:
        if connection.execute("select version from internal.catalog_version").fetchone() != (version(),):
            return ""  # another version of nightquant built the catalog
        row = connection.execute("select url from internal.catalog_root").fetchone()
    except duckdb.CatalogException:
        return ""
    return str(row[0]) if row else None


def _is_at(root: StoreRoot, place: str) -> bool:
    if place == root.url:
        return True
    # A link may give the same folder a second path.
    return bool(place) and root.local is not None and Path(place).exists() and root.local.samefile(place)


def _is_damage(error: duckdb.Error) -> bool:
    # DuckDB raises its base error class for a wrong checksum, and ``IOException`` for a truncated file.
    return isinstance(error, duckdb.IOException) or str(error).startswith("Corrupt database file")


def _check_reads(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> None:
    if statement.type == duckdb.StatementType.EXPLAIN:
        # EXPLAIN ANALYZE executes the explained statement.
        for part in connection.extract_statements(_EXPLAIN.sub("", statement.query, count=1)):
            if part.type not in _READING:
                raise QueryError(
                    f"EXPLAIN is not allowed with {part.type.name} statements, because queries are read-only. Explain "
                    "a SELECT statement instead."
                )
    elif statement.type == duckdb.StatementType.MULTI:
        _check_is_pivot(connection, statement)
    elif statement.type not in _READING:
        raise QueryError(
            f"{statement.type.name} statements are not allowed, because queries are read-only. Use a SELECT statement "
            "instead."
        )
    if hiding := _HIDING.search(_without(statement.query, duckdb.token_type.comment, duckdb.token_type.string_const)):
        raise QueryError(
            f"{hiding[0].upper()} is not allowed, because queries are read-only. Remove {hiding[0].upper()} from the "
            "query."
        )


def _without(sql: str, *kinds: duckdb.token_type) -> str:
    content, tokens = sql.encode(), duckdb.tokenize(sql)
    ends = [*(start for start, _ in tokens[1:]), len(content)]
    parts = (content[start:end] for (start, kind), end in zip(tokens, ends, strict=True) if kind not in kinds)
    return b" ".join(parts).decode()


def _check_is_pivot(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> None:
    # DuckDB splits a PIVOT statement into several statements, even if the statement only reads data. Inside EXISTS,
    # DuckDB's grammar accepts only queries that read data.
    query = _without(statement.query, duckdb.token_type.comment).rstrip("; \n\t")
    try:
        connection.extract_statements(f"select exists (\n{query}\n)")
    except duckdb.ParserException as error:
        raise QueryError(
            "Queries are read-only, so a statement with PIVOT cannot write data. Use PIVOT only to read data."
        ) from error
