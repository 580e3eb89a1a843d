"""Merge a finished month's files into one file while other processes read and write results.

The merged file's footer names its runs, so the catalog contains every row exactly once at any time, even if a process
is killed between writing the merged file and deleting the runs' own files. The next compaction then deletes them.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from storage.results.catalog import refresh
from storage.results.layout import RUNS_KEY, Files, find_files, folder, month_of, read_rows
from storage.results.tables import TABLES, Table
from storage.results.writer import serialized
from storage.root import StoreRoot

# Wait before compacting a month, because a run that started before midnight may still publish into the old month.
MONTH_CLOSES = dt.timedelta(days=2)


@dataclass(frozen=True)
class Compacted:
    """Result of a compaction: the merged months, and the number of files that the merged files replaced."""

    written: tuple[str, ...]
    files_removed: int


def compact(root: StoreRoot | Path | str, *, now: dt.datetime | None = None) -> Compacted:
    """Merge the files of months that ended at least two days ago, remove the merged files, and rebuild the catalog."""
    root = StoreRoot.of(root)
    open_month = f"{(now or dt.datetime.now(dt.UTC)).astimezone(dt.UTC) - MONTH_CLOSES:%Y-%m}"
    written: list[str] = []
    removed = 0
    with root.lock("compaction"):
        for table in TABLES.values():
            files = find_files(root, table)
            fresh = [name for name in files.runs if name not in files.merged]
            for month in sorted({month_of(files.runs[name]) for name in fresh}):
                if month < open_month:
                    _write(root, table, month, files, [name for name in fresh if month_of(files.runs[name]) == month])
                    written.append(f"{table.name} {month}")
            files = find_files(root, table)
            merged = [entry for name, entry in files.runs.items() if name in files.merged]
            for entry in (*merged, *files.superseded):
                root.delete(entry.name)
                removed += 1
        refresh(root)
    return Compacted(tuple(written), removed)


def _write(root: StoreRoot, table: Table, month: str, files: Files, fresh: Sequence[str]) -> None:
    before = files.compacted.get(month)
    entries = [files.runs[name] for name in fresh] + ([before.entry] if before else [])
    rows = pa.concat_tables(read_rows(root, table, entry.name) for entry in entries)
    number = before.number + 1 if before else 1
    # Never overwrite a file, because another host may have written it.
    name = f"{folder(table)}/month={month}/compacted-{number:04}.parquet"
    root.put_new(name, merged_month(table, rows, {*fresh, *(before.runs if before else ())}))


def merged_month(table: Table, rows: pa.Table, runs: Iterable[str]) -> bytes:
    """Return the bytes of a compacted file with sorted rows; the file's footer names the runs."""
    ordered = rows.sort_by([(name, "ascending") for name in table.order])
    metadata = {**(table.schema.metadata or {}), RUNS_KEY: json.dumps(sorted(runs)).encode()}
    return serialized(ordered.replace_schema_metadata(metadata))
