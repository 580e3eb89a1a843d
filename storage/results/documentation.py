"""The generated part of ``docs/results.md``: every view and column. ``python -m storage.results.documentation``."""

from __future__ import annotations

from pathlib import Path

from storage.results.catalog import MATERIALIZE_UP_TO
from storage.results.query import described
from storage.results.tables import SCHEMA_VERSION, TABLES, Table

PAGE = Path("docs/results.md")
MARKER = "<!-- Generated from here on: python -m storage.results.documentation -->\n"


def documented(page: str) -> str:
    """The page with what follows its marker written again."""
    written, _, _ = page.partition(MARKER)
    parts = [f"{written}{MARKER}"]
    parts.append(
        f"Schema version: {SCHEMA_VERSION}. Rows copied into the catalog: up to {MATERIALIZE_UP_TO:,} a table.\n"
    )
    parts.append("## Views\n")
    views = [item for item in described() if item.kind == "view"]
    parts += [f"### {item.name}\n\n{item.meaning}\n\n```sql\n{item.example}\n```\n" for item in views]
    parts.append("## Tables\n")
    parts += [_table(table) for table in TABLES.values()]
    return "\n".join(parts)


def _table(table: Table) -> str:
    lines = [f"### {table.name}\n", f"{table.meaning} Key: {', '.join(f'`{name}`' for name in table.key)}.\n"]
    lines += ["| column | type | unit | NULL | meaning |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{column.name}` | {column.type} | {column.unit} | {'yes' if column.nullable else 'no'} "
        f"| {column.description} |"
        for column in table.columns
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(documented(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
