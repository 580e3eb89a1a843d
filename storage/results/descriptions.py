"""What every table, view and column means: for ``--list``, docs/results.md and the catalog's own comments."""

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
    """A table or view: what it holds, a query to start from, and what those columns mean that no table has."""

    name: str
    kind: str
    meaning: str
    example: str
    columns: dict[str, str] = field(default_factory=dict)


def described() -> list[Described]:
    """Describe the tables and views, with an example each."""
    tables = [
        Described(table.name, "table", table.meaning, f"select * from {table.name} limit 5")
        for table in TABLES.values()
    ]
    return tables + [_view(name, sql) for name, sql in view_files().items()]


def view_files() -> dict[str, str]:
    """Every view's SQL by file name, in the order in which they build on each other."""
    folder = resources.files("storage.results") / "views"
    found = [item for item in folder.iterdir() if item.name.endswith(".sql")]
    files = {item.name: item.read_text(encoding="utf-8") for item in sorted(found, key=lambda item: item.name)}
    for name, share in (("WAITED_SHARE", WAITED_SHARE), ("STOLEN_SHARE", STOLEN_SHARE)):
        files = {file: sql.replace(f"{{{name}}}", str(share)) for file, sql in files.items()}
    return files


def add_comments(connection: duckdb.DuckDBPyConnection) -> None:
    """Comment on every table, view and column of the connection's current catalog, where its other clients see it."""
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
    """Text inside single quotes of SQL."""
    return text.replace("'", "''")


def _view(file: str, sql: str) -> Described:
    # Its first lines: the meaning, an example, columns that are no table's, and what only a reader of the SQL needs.
    comments = [line.removeprefix("--").strip() for line in sql.splitlines() if line.startswith("--")]
    meaning, _, rest = "\n".join(comments).partition("\nexample: ")
    example, *others = rest.splitlines()
    columns = {found[1]: found[2] for line in others if (found := _COLUMN.match(line))}
    return Described(Path(file).stem.partition("_")[2], "view", meaning.replace("\n", " "), example, columns)


def _columns_of(name: str) -> dict[str, str]:
    """What each column means; a view's that it does not explain itself mean what they do in the table it reads."""
    if table := TABLES.get(name):
        return _meanings(table)
    view, sql = next((view, sql) for file, sql in view_files().items() if (view := _view(file, sql)).name == name)
    words = re.findall(r"\w+", sql)
    read = sorted(
        (table for table in TABLES.values() if table.name in words), key=lambda table: words.index(table.name)
    )
    meanings: dict[str, str] = {}
    for table in (*read, MEASUREMENTS, *TABLES.values()):
        meanings = _meanings(table) | meanings
    return meanings | view.columns


def _meanings(table: Table) -> dict[str, str]:
    return {
        column.name: f"{column.description} [{column.unit}]" if column.unit else column.description
        for column in table.columns
    }
