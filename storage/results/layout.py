"""Where a table's files lie, and which of them hold its rows now.

``results/<table>/month=YYYY-MM/<run-id>.parquet``
    One run's rows, in the month of their publication.
``results/<table>/compacted/YYYY-MM-NNNN.pq``
    All rows of a finished month; the highest NNNN counts. Its footer names the runs that it holds. The suffix keeps
    it out of readers' ``**/*.parquet``, because the runs' own files still stand there for a while.
``results/<table>/month=YYYY-MM/compacted-NNNN.parquet``
    The same rows, once they have taken the place of the runs' own files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import StoreError
from storage.results.tables import Table
from storage.root import Entry, StoreRoot

RUNS_KEY = b"nightquant.runs"
_COMPACTED = re.compile(r"^(\d{4}-\d{2})-(\d{4,})\.pq$")
_MONTH = re.compile(r"^month=(\d{4}-\d{2})$")


def folder(table: Table) -> str:
    """The table's folder, relative to the root."""
    return f"results/{table.name}"


@dataclass(frozen=True)
class RunFile:
    """One run's file."""

    entry: Entry
    month: str
    run_id: str


@dataclass(frozen=True)
class CompactedFile:
    """The file that counts of a finished month, and the runs in it."""

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
        """Every run that a counting compacted file holds."""
        return frozenset(run for file in self.newest.values() for run in file.runs)

    @property
    def current(self) -> list[Entry]:
        """The files that together hold each row once, by month."""
        loose = [(file.month, file.entry) for file in self.runs if file.run_id not in self.compacted_runs]
        whole = [(month, file.entry) for month, file in self.newest.items()]
        return [entry for _, entry in sorted(whole + loose, key=lambda pair: (pair[0], pair[1].name))]


def find_files(root: StoreRoot, table: Table) -> Files:
    """List a table's files; temporary and foreign ones are left out.

    Raises
    ------
    StoreError
        A compacted file is broken.
    """
    gone = ""
    while True:
        try:
            return _listed(root, table)
        except _Vanished as error:
            # A compaction has deleted it since the listing; the next listing shows the one that holds its rows now.
            if error.name == gone:
                raise broken(root, gone, error) from error
            gone = error.name


class _Vanished(Exception):  # noqa: N818
    """A compacted file was listed and is no longer there."""

    def __init__(self, name: str) -> None:
        super().__init__("it is listed, but not there")
        self.name = name


def _listed(root: StoreRoot, table: Table) -> Files:
    runs: list[RunFile] = []
    compacted: dict[str, dict[int, Entry]] = {}
    for entry in root.list(folder(table)):
        path = PurePosixPath(entry.name)
        if month := _MONTH.match(path.parent.name):
            if path.suffix == ".parquet" and not path.name.startswith((".", "compacted-")):
                runs.append(RunFile(entry, month[1], path.stem))
        elif match := _COMPACTED.match(path.name):
            compacted.setdefault(match[1], {})[int(match[2])] = entry
    newest, superseded = {}, {}
    for month_name, numbered in sorted(compacted.items()):
        number = max(numbered)
        entry = numbered.pop(number)
        newest[month_name] = CompactedFile(entry, month_name, number, runs_in(root, entry))
        superseded[month_name] = tuple(numbered.values())
    return Files(tuple(runs), newest, superseded)


def runs_in(root: StoreRoot, entry: Entry) -> frozenset[str]:
    """The run ids that a compacted file's footer names."""
    try:
        metadata = footer(root, entry).metadata or {}
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise _Vanished(entry.name) from error
        raise
    return frozenset(json.loads(metadata.get(RUNS_KEY, b"[]")))


def footer(root: StoreRoot, entry: Entry) -> pq.FileMetaData:
    """A Parquet file's footer.

    Raises
    ------
    StoreError
        The file is broken.
    """
    filesystem, base = root.arrow()
    try:
        with filesystem.open_input_file(f"{base}/{entry.name}") as stream:
            return pq.ParquetFile(stream).metadata
    except (pa.ArrowException, OSError) as error:
        raise broken(root, entry.name, error) from error


def broken(root: StoreRoot, name: str, error: Exception) -> StoreError:
    """The error for a results file that cannot be read."""
    return StoreError(
        f"The results file {root.uri(name)} cannot be read: {error}.",
        hint="See what else is wrong with: nightquant store check. A broken file is to be moved out of the store.",
    )


def months_of(files: Iterable[RunFile]) -> dict[str, list[RunFile]]:
    """The runs' files by month of publication."""
    months: dict[str, list[RunFile]] = {}
    for file in files:
        months.setdefault(file.month, []).append(file)
    return months
