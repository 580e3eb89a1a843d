"""Query a copy of the catalog, so that queries cannot change the store, and format the resulting rows."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import ConfigurationError, StoreError
from storage.results import Row
from storage.results.catalog import CATALOG, build, quoted, version
from storage.root import StoreRoot

_UNLIMITED = 1 << 20


class QueryError(ConfigurationError):
    """DuckDB refuses the SQL."""


@contextmanager
def open_catalog(root: StoreRoot | Path | str, *, fresh: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a copy of the store's catalog for reading; yield a connection that has access to no other file.

    If the catalog is missing, or another version of nightquant built it, the function builds a temporary catalog. If
    `fresh` is true, it always does, because the store's catalog may lack the last rows of a run.
    """
    root = StoreRoot.of(root)
    with tempfile.TemporaryDirectory(prefix="nightquant-") as scratch:
        # DuckDB denies access to all files except the attached one. COPY could overwrite even that file.
        catalog = Path(scratch) / CATALOG
        if not fresh and root.exists(CATALOG):
            root.download(CATALOG, catalog)
        elif fresh or root.list("results"):
            build(root, catalog)
        else:
            raise StoreError(
                f"The store {root.url} has no results.",
                hint="Run nightquant nightly first, or choose another store with --store.",
            )
        with _opened(root, catalog) as connection:
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


def formatted(rows: pa.Table, format_: str) -> bytes:
    """Write rows in one of `FORMATS`: UTF-8 text that ends with a newline, or a Parquet file.

    DuckDB converts values to JSON, in which NaN and infinities become null. Columns with the same name are numbered.
    """
    return FORMATS[format_](rows)


def boxed(rows: pa.Table, width: int = _UNLIMITED) -> bytes:
    """Format rows as DuckDB's own table; a narrow table has wrapped cells, and "…" in place of the middle columns."""
    with duckdb.connect() as connection, redirect_stdout(io.StringIO()) as text:
        relation = connection.from_arrow(rows)
        relation.show(
            max_width=width,
            max_rows=max(1, rows.num_rows),
            max_col_width=min(width, _UNLIMITED if width == _UNLIMITED else 30),
            null_value="",
        )
    return text.getvalue().rstrip("\n").encode() + b"\n"


def _csv(rows: pa.Table) -> bytes:
    names, values = _values(rows)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for row in values:
        writer.writerow([json.dumps(cell) if isinstance(cell, list | dict) else cell for cell in row])
    return buffer.getvalue().encode()


def _json(rows: pa.Table) -> bytes:
    names, values = _values(rows)
    records = [dict(zip(names, row, strict=True)) for row in values]
    return json.dumps(records, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _parquet(rows: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()


FORMATS: dict[str, Callable[[pa.Table], bytes]] = {"table": boxed, "csv": _csv, "json": _json, "parquet": _parquet}


def _values(rows: pa.Table) -> tuple[list[str], list[list[object]]]:
    """Return the columns' names and each row's JSON values; decimals become text to keep all digits."""
    columns = [column.cast(pa.string()) if pa.types.is_decimal(column.type) else column for column in rows.columns]
    with duckdb.connect() as connection:
        relation = connection.from_arrow(pa.table(columns, names=rows.column_names))
        names, written = relation.columns, relation.project("to_json(columns(*))").fetchall()
    read = json.JSONDecoder(parse_constant=lambda name: None).decode
    return names, [[None if cell is None else read(cell) for cell in row] for row in written]
