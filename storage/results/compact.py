"""Merge a finished month's files into one file while other processes read and write results.

A month passes through three states:

1. Each run has its own file. Every run's file is in the catalog and matches the readers' pattern, ``**/*.parquet``.
2. A ``.pq`` file with all rows of the month is added. The readers' pattern does not match ``.pq`` files, but the next
   catalog lists the new file.
3. At least `grace` after the merge, the runs' own files are deleted, and a copy that ends in ``.parquet`` is added.

The catalog contains every row exactly once at any time, even if a process is killed. A query that reads the files by
their pattern misses rows of the month during the last step.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa

from storage.results.catalog import refresh
from storage.results.layout import RUNS_KEY, CompactedFile, Files, RunFile, broken, find_files, folder, read_rows
from storage.results.tables import TABLES, Table
from storage.results.writer import serialized
from storage.root import StoreRoot

# Wait before compacting a month, because a run that started before midnight may still publish into the old month.
MONTH_SETTLES = dt.timedelta(days=2)
# Readers keep a catalog open only for a few minutes.
GRACE = dt.timedelta(hours=12)


@dataclass(frozen=True)
class Compacted:
    """Result of a compaction: merged months, months whose small files were removed, and the number of removed files."""

    written: tuple[str, ...]
    retired: tuple[str, ...]
    files_removed: int


def compact(root: StoreRoot | Path | str, *, now: dt.datetime | None = None, grace: dt.timedelta = GRACE) -> Compacted:
    """Merge files of months that ended at least two days ago; remove files that were merged at least `grace` ago."""
    root = StoreRoot.of(root)
    now = now or dt.datetime.now(dt.UTC)
    open_month = f"{now.astimezone(dt.UTC) - MONTH_SETTLES:%Y-%m}"
    written: list[str] = []
    retired: list[str] = []
    removed = 0
    with root.lock("compaction"):
        refresh(root)  # from now on, new readers do not open a catalog that names a replaced file
        for table in TABLES.values():
            files = find_files(root, table)
            for month, whole in files.newest.items():
                small = files.months.get(month, [])
                is_old = whole.entry.modified <= (now - grace).timestamp()
                is_due = is_old and whole.runs.issuperset(file.run_id for file in small)
                if is_due and not root.exists(_visible(table, whole)):
                    _retire(root, table, whole, small)
                    removed += len(small)
                    retired.append(f"{table.name} {month}")
            _drop_superseded(root, table, files)
            for month, small in files.months.items():
                fresh = [file for file in small if file.run_id not in files.compacted_runs]
                # Compact even a single file, because a ``.pq`` file keeps its name when the month's folder is replaced.
                if month < open_month and fresh:
                    _write(root, table, month, files.newest.get(month), fresh)
                    written.append(f"{table.name} {month}")
        refresh(root)
    return Compacted(tuple(written), tuple(retired), removed)


def _write(root: StoreRoot, table: Table, month: str, before: CompactedFile | None, fresh: Sequence[RunFile]) -> None:
    entries = [file.entry.name for file in fresh] + ([before.entry.name] if before else [])
    rows = pa.concat_tables(_read(root, table, name) for name in entries)
    runs = {file.run_id for file in fresh} | (before.runs if before else frozenset())
    number = before.number + 1 if before else 1
    # Never overwrite a file, because a catalog may already name a file that another process has written.
    root.put_new(f"{folder(table)}/compacted/{month}-{number:04}.pq", whole_month(table, rows, runs))


def whole_month(table: Table, rows: pa.Table, runs: Iterable[str]) -> bytes:
    """Return the bytes of a compacted file with sorted rows; the file's footer names the runs."""
    ordered = rows.sort_by([(name, "ascending") for name in table.order])
    metadata = {**(table.schema.metadata or {}), RUNS_KEY: json.dumps(sorted(runs)).encode()}
    return serialized(table, ordered.replace_schema_metadata(metadata))


def _read(root: StoreRoot, table: Table, name: str) -> pa.Table:
    rows = read_rows(root, name)
    try:
        for field in table.schema:
            if field.name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows.select(table.schema.names).cast(table.schema)
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise broken(root, name, error) from error


def _visible(table: Table, whole: CompactedFile) -> str:
    return f"{folder(table)}/month={whole.month}/compacted-{whole.number:04}.parquet"


def _retire(root: StoreRoot, table: Table, whole: CompactedFile, small: Sequence[RunFile]) -> None:
    visible = _visible(table, whole)
    for file in small:
        root.delete(file.entry.name)
    for entry in root.list(f"{folder(table)}/month={whole.month}"):
        if PurePosixPath(entry.name).name.startswith("compacted-") and entry.name != visible:
            root.delete(entry.name)
    root.put_new(visible, root.read(whole.entry.name))


def _drop_superseded(root: StoreRoot, table: Table, files: Files) -> None:
    """Delete the superseded ``.pq`` files of retired months; no open catalog uses these files."""
    for month, entries in files.superseded.items():
        if entries and root.exists(_visible(table, files.newest[month])):
            for entry in entries:
                root.delete(entry.name)
