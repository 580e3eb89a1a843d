from __future__ import annotations

from pathlib import Path

import pytest

from storage.results.catalog import MATERIALIZE_UP_TO
from storage.results.descriptions import Described, described
from storage.results.tables import SCHEMA_VERSION, TABLES, Table

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "results.md"
MARKER = "<!-- Generated from here on: python -m tests.storage.results.test_documentation -->\n"


def documented(page: str) -> str:
    """The page with what follows its marker written again."""
    written, _, _ = page.partition(MARKER)
    limits = f"Schema version: {SCHEMA_VERSION}. Rows copied into the catalog: up to {MATERIALIZE_UP_TO:,} a table.\n"
    views = [item for item in described() if item.kind == "view"]
    tables = map(_table, TABLES.values())
    return "\n".join([f"{written}{MARKER}", limits, "## Views\n", *map(_view, views), "## Tables\n", *tables])


def _view(view: Described) -> str:
    text = f"### {view.name}\n\n{view.meaning}\n\n```sql\n{view.example}\n```\n"
    if not view.columns:
        return text
    rows = [f"| `{name}` | {meaning} |" for name, meaning in view.columns.items()]
    return "\n".join([text, "| column of its own | meaning |", "| --- | --- |", *rows, ""])


def _table(table: Table) -> str:
    lines = [f"### {table.name}\n", f"{table.meaning} Key: {', '.join(f'`{name}`' for name in table.key)}.\n"]
    lines += ["| column | type | unit | NULL | meaning |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{column.name}` | {column.type} | {column.unit} | {'yes' if column.nullable else 'no'} "
        f"| {column.description} |"
        for column in table.columns
    ]
    return "\n".join(lines) + "\n"


def test_the_page_is_what_the_tables_say() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert MARKER in written
    assert written == documented(written), "Write it again with: python -m tests.storage.results.test_documentation"


@pytest.mark.parametrize("table", list(TABLES))
@pytest.mark.slow
def test_keys_and_orders_name_columns_that_are_never_null(table: str) -> None:
    required = {column.name for column in TABLES[table].columns if not column.nullable}
    # A layer may belong to every runtime, and only a further setting has a length of its own.
    added = {"layers": {"runtime"}, "measurements": {"sequence_length"}}
    assert set(TABLES[table].key) - required == added.get(table, set())
    assert set(TABLES[table].order) <= required


if __name__ == "__main__":
    PAGE.write_text(documented(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
