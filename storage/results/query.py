"""Reading: the catalog opened so that no query can change the store."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from storage.errors import ConfigurationError, StoreError
from storage.results.catalog import CATALOG, build, quoted, view_files
from storage.results.tables import TABLES
from storage.root import StoreRoot

if TYPE_CHECKING:
    import pyarrow as pa

_READING = frozenset({duckdb.StatementType.SELECT, duckdb.StatementType.PRAGMA})
_EXPLAIN = re.compile(r"^\s*explain(\s+analyze|\s*\([^)]*\))?\s", re.IGNORECASE)


class QueryError(ConfigurationError):
    """The SQL is wrong or would do more than read; DuckDB's own message."""


@dataclass(frozen=True)
class Described:
    """A table or view: what it holds and a query to start from."""

    name: str
    kind: str
    meaning: str
    example: str


@contextmanager
def open_catalog(root: StoreRoot | Path | str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the store's catalog for reading; yield the connection.

    The connection reads the catalog, and the results files where they are too many to be in it, and nothing else; its
    settings are locked. Where a store has results but no catalog yet, one is built in a temporary folder.

    Raises
    ------
    StoreError
        The store holds no results.
    """
    root = StoreRoot.of(root)
    with tempfile.TemporaryDirectory(prefix="nightquant-") as scratch:
        path = _catalog_file(root, Path(scratch))
        # Attached to a database in memory: opened by itself, a file's database and its locked settings are shared
        # with every other connection of this process.
        with duckdb.connect() as connection:
            connection.execute(f"attach '{quoted(str(path))}' as results (read_only)")
            connection.execute("use results")
            _restrict(connection, root)
            yield connection


def run_query(root: StoreRoot | Path | str, sql: str) -> pa.Table:
    """Run SQL that reads, over tables and views; give the last statement's rows.

    Raises
    ------
    QueryError
        DuckDB refuses the SQL, or a statement would write, attach or change a setting.
    """
    with open_catalog(root) as connection:
        try:
            result: pa.Table | None = None
            for statement in connection.extract_statements(sql):
                _check_reads(connection, statement)
                relation = connection.sql(statement)
                result = relation.to_arrow_table() if relation is not None else None
        except duckdb.Error as error:
            raise QueryError(str(error)) from error
    if result is None:
        raise QueryError("There is no statement to run.")
    return result


def described() -> list[Described]:
    """Tables and views with what they hold and an example each."""
    tables = [
        Described(table.name, "table", table.meaning, f"select * from {table.name} limit 5")
        for table in TABLES.values()
    ]
    views = []
    for name, sql in view_files().items():
        comments = [line.removeprefix("--").strip() for line in sql.splitlines() if line.startswith("--")]
        example = next(line.removeprefix("example: ") for line in comments if line.startswith("example: "))
        meaning = " ".join(comments[: comments.index(f"example: {example}")])
        views.append(Described(Path(name).stem.partition("_")[2], "view", meaning, example))
    return tables + views


def _catalog_file(root: StoreRoot, scratch: Path) -> Path:
    if root.local is not None and root.exists(CATALOG):
        return root.local / CATALOG
    path = scratch / CATALOG
    if root.exists(CATALOG):
        root.download(CATALOG, path)
        return path
    if not root.list("results"):
        raise StoreError(
            f"The store {root.url} holds no results.",
            hint="Run a night first (nightquant nightly), or name another store with --store.",
        )
    build(root, path)
    return path


def _restrict(connection: duckdb.DuckDBPyConnection, root: StoreRoot) -> None:
    filesystem = root.duckdb_filesystem()
    if filesystem is not None:
        connection.register_filesystem(filesystem)
    connection.execute("set allowed_directories = [$folder]", {"folder": f"{root.uri('results')}/"})
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")


def _check_reads(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> None:
    kinds = [statement.type]
    if statement.type == duckdb.StatementType.EXPLAIN:
        # EXPLAIN ANALYZE runs what it explains.
        kinds = [part.type for part in connection.extract_statements(_EXPLAIN.sub("", statement.query, count=1))]
    for kind in kinds:
        if kind not in _READING:
            raise QueryError(f"{kind.name} is refused: a query can only read.")
