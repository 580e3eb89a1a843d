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
    """A finished month's file and the runs in it."""

    entry: Entry
    month: str
    number: int
    runs: frozenset[str]


@dataclass(frozen=True)
class Files:
    """A table's files at one moment."""

    runs: tuple[RunFile, ...]
    compacted: tuple[CompactedFile, ...]

    @cached_property
    def newest(self) -> dict[str, CompactedFile]:
        """The compacted file that counts, per month."""
        return {file.month: file for file in sorted(self.compacted, key=lambda file: (file.month, file.number))}

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
    """List a table's files; temporary and foreign ones are left out."""
    runs, compacted = [], []
    for entry in root.list(folder(table)):
        path = PurePosixPath(entry.name)
        if month := _MONTH.match(path.parent.name):
            if path.suffix == ".parquet" and not path.name.startswith((".", "compacted-")):
                runs.append(RunFile(entry, month[1], path.stem))
        elif match := _COMPACTED.match(path.name):
            compacted.append(CompactedFile(entry, match[1], int(match[2]), runs_in(root, entry)))
    return Files(tuple(runs), tuple(compacted))


def runs_in(root: StoreRoot, entry: Entry) -> frozenset[str]:
    """The run ids that a compacted file's footer names."""
    metadata = footer(root, entry).metadata or {}
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
