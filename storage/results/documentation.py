"""``docs/results.md``, generated from the tables and views: ``python -m storage.results.documentation``."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from storage.results.catalog import MATERIALIZE_UP_TO
from storage.results.query import described
from storage.results.tables import SCHEMA_VERSION, TABLES, Table

_INTRODUCTION = """\
# Results: tables and views

Generated from `storage/results/tables.py` and `storage/results/views/*.sql` by
`python -m storage.results.documentation`; a test fails when this page is not what that writes.
Schema version: {version}.

Ask in SQL:

```
nightquant query "select workload, recipe, runtime, speedup, speedup_over_best_float from leaderboard"
nightquant query --list
```

A query can only read: statements that write, attach or change settings are refused.

## Where the rows are

`results.duckdb` in the store is the catalog: generated after each night, swapped in whole, and never open for writing
while anyone reads. It is in DuckDB's storage format of version 1.5, so that the command-line client opens it as well:

```
duckdb -readonly results.duckdb "from leaderboard"
```

While a table has at most {limit} rows they are copied into the catalog, which can then be copied away and opened from
any folder. Beyond that the catalog holds views over the Parquet files by absolute path. Raw timed blocks are in the
catalog as the view `samples` only; the three list columns that it unnests are in the files.

The files themselves need no code of this project:

```
duckdb -c "from read_parquet('<store>/results/measurements/**/*.parquet', union_by_name=true) select workload, speedup"
```

That counts every row once at any time, also while months are compacted. On the instant in which a compacted month is
swapped in, it may fail with a "no such file" message: ask again, or ask the catalog, to which that does not happen. On
an object store it may miss a month's rows for that instant.

| file | what it is |
| --- | --- |
| `results/<table>/month=YYYY-MM/<run-id>.parquet` | one run's rows, in the month of their publication |
| `results/<table>/compacted/YYYY-MM-NNNN.pq` | a finished month's rows; the highest NNNN counts |
| `results/<table>/month=YYYY-MM/compacted-NNNN.parquet` | the same rows, once they took the place of the runs' files |

Each file's footer has every column's unit and meaning and the schema's version. Columns are added at the end of a table
and never removed or retyped: a column that a file is too old to have reads as NULL. Ratios are baseline ÷ candidate, so
that above 1 is better; `_low` and `_high` are the ends of the 95% interval. NaN is refused when writing.
"""


def document() -> str:
    """The page as Markdown."""
    parts = [_INTRODUCTION.format(version=SCHEMA_VERSION, limit=f"{MATERIALIZE_UP_TO:,}"), "## Views\n"]
    views = [item for item in described() if item.kind == "view"]
    parts += [f"### {item.name}\n\n{item.meaning}\n\n```sql\n{item.example}\n```\n" for item in views]
    parts.append("## Tables\n")
    parts += [_table(table) for table in TABLES.values()]
    return "\n".join(parts)


def _table(table: Table) -> str:
    lines = [f"### {table.name}\n", f"{table.meaning} Key: {', '.join(f'`{name}`' for name in table.key)}.\n"]
    lines += ["| column | type | unit | NULL | meaning |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{column.name}` | {_type(column.type)} | {column.unit} | {'yes' if column.nullable else 'no'} "
        f"| {column.meaning} |"
        for column in table.columns
    ]
    return "\n".join(lines) + "\n"


def _type(kind: pa.DataType) -> str:
    return str(kind).replace("|", "\\|")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results.md")
    target.write_text(document(), encoding="utf-8")
