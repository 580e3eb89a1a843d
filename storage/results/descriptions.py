"""Describe all tables, views and columns for ``--list``, ``docs/results.md`` and the catalog's comments."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import duckdb

from storage.results import STOLEN_SHARE, WAITED_SHARE
from storage.results.tables import MEASUREMENTS, TABLES, Table

_COLUMN = re.compile(r"^column (\w+): (.+)$")


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
    files = {item.name: item.read_text(encoding="utf-8") for item in items}
    for name, share in (("WAITED_SHARE", WAITED_SHARE), ("STOLEN_SHARE", STOLEN_SHARE)):
        files = {file: sql.replace(f"{{{name}}}", str(share)) for file, sql in files.items()}
    return files


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
    # The SQL comments give the view's meaning, an example, notes, and descriptions of the columns that exist only in
    # the view.
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
    sources = sorted(
        (table for table in TABLES.values() if table.name in words), key=lambda table: words.index(table.name)
    )
    meanings: dict[str, str] = {}
    for table in (*sources, MEASUREMENTS, *TABLES.values()):
        meanings = _meanings(table) | meanings
    return meanings | view.columns


def _meanings(table: Table) -> dict[str, str]:
    return {
        column.name: f"{column.description} [{column.unit}]" if column.unit else column.description
        for column in table.columns
    }
