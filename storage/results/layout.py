"""Where a table's files are, and which of them hold its rows now.

``results/<table>/month=YYYY-MM/<run-id>.parquet``
    One run's rows, in the month of their publication.
``results/promotions/month=YYYY-MM/<run-id>.<workload>.parquet``
    One run's rows of one workload: each workload's decisions are recorded as soon as they have taken effect.
``results/<table>/compacted/YYYY-MM-NNNN.pq``
    All rows of a finished month; the highest NNNN counts. Its footer names the runs that it holds.
``results/<table>/month=YYYY-MM/compacted-NNNN.parquet``
    The same rows, once they have taken the place of the runs' own files.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import StoreError
from storage.results.checksum import problem_of
from storage.results.tables import Table
from storage.root import Entry, StoreRoot

RUNS_KEY = b"nightquant.runs"
_COMPACTED = re.compile(r"^(\d{4}-\d{2})-(\d{4,})\.pq$")
_MONTH = re.compile(r"^month=(\d{4}-\d{2})$")


def folder(table: Table) -> str:
    """The table's folder, relative to the root."""
    return f"results/{table.name}"


def part_name(run_id: str, part: str = "") -> str:
    """The name, without its suffix, of the file for one run's rows, or for the part of them that a workload has."""
    return f"{run_id}.{part}" if part else run_id


@dataclass(frozen=True)
class RunFile:
    """One run's file, or a part of it; ``run_id`` is its name without the suffix, which `part_name` made."""

    entry: Entry
    month: str
    run_id: str


@dataclass(frozen=True)
class CompactedFile:
    """The file that counts for a finished month, and the runs in it."""

    entry: Entry
    month: str
    number: int
    runs: frozenset[str]


@dataclass(frozen=True)
class Files:
    """A table's files at one moment: the runs' own, and per month the compacted one that counts and those before it."""

    runs: tuple[RunFile, ...]
    newest: dict[str, CompactedFile]
    superseded: dict[str, tuple[Entry, ...]]

    @cached_property
    def compacted_runs(self) -> frozenset[str]:
        """Every run that a compacted file which counts holds."""
        return frozenset(run for file in self.newest.values() for run in file.runs)

    @cached_property
    def months(self) -> dict[str, list[RunFile]]:
        """The runs' own files by month of publication."""
        return {month: list(files) for month, files in groupby(self.runs, lambda file: file.month)}

    @property
    def current(self) -> list[Entry]:
        """The files that together hold each row once, by month."""
        loose = [(file.month, file.entry) for file in self.runs if file.run_id not in self.compacted_runs]
        compacted = [(month, file.entry) for month, file in self.newest.items()]
        return [entry for _, entry in sorted(compacted + loose)]

    @property
    def names(self) -> frozenset[str]:
        """Names, as from `part_name`, of everything whose rows are in the table."""
        return self.compacted_runs.union(file.run_id for file in self.runs)

    def file_of(self, run_id: str) -> Entry | None:
        """A file that holds this run's rows."""
        loose = (file.entry for file in self.runs if file.run_id == run_id)
        compacted = (file.entry for file in self.newest.values() if run_id in file.runs)
        return next(loose, None) or next(compacted, None)


def find_files(root: StoreRoot, table: Table) -> Files:
    """List a table's files; temporary and foreign ones are left out."""
    missing = ""
    while True:
        try:
            return _list_files(root, table)
        except StoreError as error:
            # A compaction has deleted it since the listing; the next listing shows the one that holds its rows now.
            if not isinstance(error.__cause__, FileNotFoundError) or error.message == missing:
                raise
            missing = error.message


def _list_files(root: StoreRoot, table: Table) -> Files:
    runs: list[RunFile] = []
    compacted: dict[str, list[tuple[int, Entry]]] = {}
    for entry in root.list(folder(table)):
        path = PurePosixPath(entry.name)
        if month := _MONTH.match(path.parent.name):
            if path.suffix == ".parquet" and not path.name.startswith((".", "compacted-")):
                runs.append(RunFile(entry, month[1], path.stem))
        elif match := _COMPACTED.match(path.name):
            compacted.setdefault(match[1], []).append((int(match[2]), entry))
    newest, superseded = {}, {}
    for name, numbered in sorted(compacted.items()):
        *older, (number, entry) = sorted(numbered)
        newest[name] = CompactedFile(entry, name, number, _runs_in(root, entry))
        superseded[name] = tuple(entry for _, entry in older)
    return Files(tuple(runs), newest, superseded)


def _runs_in(root: StoreRoot, entry: Entry) -> frozenset[str]:
    try:
        return frozenset(map(str, json.loads((footer(root, entry).metadata or {}).get(RUNS_KEY, b"[]"))))
    except (ValueError, TypeError) as error:
        raise broken(root, entry.name, error) from error


def footer(root: StoreRoot, entry: Entry) -> pq.FileMetaData:
    """Read a Parquet file's footer."""
    filesystem, base = root.arrow()
    try:
        with filesystem.open_input_file(f"{base}/{entry.name}") as stream:
            return pq.ParquetFile(stream).metadata
    except (pa.ArrowException, OSError) as error:
        raise broken(root, entry.name, error) from error


def check_file(root: StoreRoot, name: str) -> bytes:
    """Read a results file whole and hold it against its own digest; `StoreError` if it does not fit."""
    try:
        content = root.read(name)
        if problem := problem_of(content):
            raise ValueError(problem)
    except (OSError, ValueError) as error:
        raise broken(root, name, error) from error
    return content


def read_rows(root: StoreRoot, name: str) -> pa.Table:
    """Read all of a results file, once, and hold it against its checksums; `StoreError` if it is broken."""
    content = check_file(root, name)
    try:
        # Not read_table: it would take the folder's month=… for a column.
        return pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise broken(root, name, error) from error


def broken(root: StoreRoot, name: str, error: Exception) -> StoreError:
    """The error for a results file that cannot be read."""
    return StoreError(
        f"The results file {root.uri(name)} cannot be read: {error}.",
        hint="See what else is wrong with: nightquant store check. Move a broken file out of the store.",
    )
