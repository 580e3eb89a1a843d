from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.results.catalog import Described, described
from storage.results.tables import SCHEMA_VERSION, TABLES, Column, Table

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "results.md"

# Calls of macros and names of columns, which are code on the page.
_CODE = re.compile(
    r"\b\w+_o[nf]\((?:[^()]|\([^()]*\))*\)|\b[a-z0-9]+(?:_[a-z0-9]+)+\b"
    r"|(?:(?<=interval for )|(?<=uses for )|(?<=latency / ))(?:speedup|tonight)\b"
    r"|\b(?:latest|measurements|outcomes|promotions|samples)(?= (?:table|view)\b)"
)


def sections() -> Iterator[str]:
    """The page's lines."""
    views = sorted((item for item in described() if item.kind == "view"), key=lambda item: item.name)
    names = [[f"[`{name}`](#{name})" for name in part] for part in ([view.name for view in views], TABLES)]
    yield f"- Views: {', '.join(names[0])}\n- Tables: {', '.join(names[1])}\n"
    yield f"The schema version is {SCHEMA_VERSION}.\n"
    yield from ("## Views\n", *map(_view, views), "## Tables\n", *map(_table, TABLES.values()))


def _view(view: Described) -> str:
    text = f"### {view.name}\n\n{_prose(view.meaning)}\n\n```sql\n{view.example}\n```\n"
    if not view.columns:
        return text
    rows = [f"| `{name}` | {_prose(meaning)} |" for name, meaning in view.columns.items()]
    return "\n".join([text, "| additional column | meaning |", "| --- | --- |", *rows, ""])


def _table(table: Table) -> str:
    lines = [f"### {table.name}\n", f"{_prose(table.meaning)} Key: {', '.join(f'`{name}`' for name in table.key)}.\n"]
    lines += ["| column | type | unit | NULL | meaning |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{column.name}` | `{column.type}` | {column.unit} | {'yes' if column.nullable else 'no'} "
        f"| {_prose(column.meaning)}{_choices(column)} |"
        for column in table.columns
    ]
    return "\n".join(lines) + "\n"


def _choices(column: Column) -> str:
    shown = ", ".join(f"`{choice}`" for choice in column.choices)
    return f"; values: {shown}" if shown else ""


def _prose(text: str) -> str:
    return re.sub(r"docs/(\w+\.md)", r"[\1](\1)", _CODE.sub(lambda code: f"`{code[0]}`", text))


@pytest.mark.parametrize("table", list(TABLES))
@pytest.mark.slow
def test_keys_and_orders_name_columns_that_are_never_null(table: str) -> None:
    required = {column.name for column in TABLES[table].columns if not column.nullable}
    # A layer may belong to every runtime.
    added = {"layers": {"runtime"}}
    assert set(TABLES[table].key) - required == added.get(table, set())
    assert set(TABLES[table].order) <= required
