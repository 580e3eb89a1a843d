"""List a table's files, and select the files that contain the current rows.

``results/<table>/month=YYYY-MM/<run-id>.parquet``
    Rows of one run, in the month of publication.
``results/<table>/month=YYYY-MM/<run-id>.<workload>.parquet``
    Rows of one run and one workload; a run records each workload's measurements as soon as they are finished, and each
    workload's decisions as soon as they take effect.
``results/<table>/compacted/YYYY-MM-NNNN.pq``
    All rows of a finished month; the file with the highest NNNN supersedes the others. The footer names the runs in the
    file.
``results/<table>/month=YYYY-MM/compacted-NNNN.parquet``
    All rows of a finished month, in a file that has replaced the runs' own files.

The footer of a results file contains the file's SHA-256, which is computed with a placeholder for the digest. Parquet's
checksums cover only pages, but a flipped bit in a header or footer can also change values.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

from storage.errors import StoreError
from storage.results.tables import Table
from storage.root import Entry, StoreRoot

_DIGEST = "nightquant.file-sha256"
_PLACEHOLDER = hashlib.sha256(_DIGEST.encode()).hexdigest()
# Add this entry to the footer before calling `sealed`.
PLACEHOLDER = {_DIGEST: _PLACEHOLDER}


def sealed(content: bytes) -> bytes:
    """Insert the digest into a file that was written with `PLACEHOLDER` in the footer."""
    return content.replace(_PLACEHOLDER.encode(), hashlib.sha256(content).hexdigest().encode())


RUNS_KEY = b"nightquant.runs"
_COMPACTED = re.compile(r"^(\d{4}-\d{2})-(\d{4,})\.pq$")
_MONTH = re.compile(r"^month=(\d{4}-\d{2})$")


def folder(table: Table) -> str:
    """Return the table's folder, relative to the root."""
    return f"results/{table.name}"


def part_name(run_id: str, part: str = "") -> str:
    """Return the name, without the suffix, of the file with a run's rows; `part` limits the rows to one workload."""
    return f"{run_id}.{part}" if part else run_id


@dataclass(frozen=True)
class RunFile:
    """A file with all or part of a run's rows; ``run_id`` is the file's name without its suffix (see `part_name`)."""

    entry: Entry
    month: str
    run_id: str


@dataclass(frozen=True)
class CompactedFile:
    """The compacted file of a finished month; ``runs`` names the runs in the file."""

    entry: Entry
    month: str
    number: int
    runs: frozenset[str]


@dataclass(frozen=True)
class Files:
    """A table's files at one moment: the runs' own files, and each month's latest and superseded compacted files."""

    runs: tuple[RunFile, ...]
    newest: dict[str, CompactedFile]
    superseded: dict[str, tuple[Entry, ...]]

    @cached_property
    def compacted_runs(self) -> frozenset[str]:
        """Names of all runs and parts in the latest compacted files."""
        return frozenset(run for file in self.newest.values() for run in file.runs)

    @cached_property
    def months(self) -> dict[str, list[RunFile]]:
        """The runs' own files, keyed by month of publication."""
        return {month: list(files) for month, files in groupby(self.runs, lambda file: file.month)}

    @property
    def current(self) -> list[Entry]:
        """Files, sorted by month, that together contain each row exactly once."""
        loose = [(file.month, file.entry) for file in self.runs if file.run_id not in self.compacted_runs]
        compacted = [(month, file.entry) for month, file in self.newest.items()]
        return [entry for _, entry in sorted(compacted + loose)]

    @property
    def names(self) -> frozenset[str]:
        """Names of all runs and parts in the table, as returned by `part_name`."""
        return self.compacted_runs.union(file.run_id for file in self.runs)

    def file_of(self, run_id: str) -> Entry | None:
        """Return a file that contains the run's rows, or None if no file contains them."""
        loose = (file.entry for file in self.runs if file.run_id == run_id)
        compacted = (file.entry for file in self.newest.values() if run_id in file.runs)
        return next(loose, None) or next(compacted, None)

    def files_of(self, run_id: str) -> list[Entry]:
        """Return the files that together contain the rows of the run and its parts; they may contain other rows."""
        names = (name for name in self.names if name == run_id or name.startswith(f"{run_id}."))
        found = (self.file_of(name) for name in sorted(names))
        return list({entry.name: entry for entry in found if entry is not None}.values())


def find_files(root: StoreRoot, table: Table) -> Files:
    """List a table's files; ignore temporary files and files from other programs."""
    missing = ""
    while True:
        try:
            return _list_files(root, table)
        except StoreError as error:
            # A compaction has deleted the file since the listing; the next listing includes the compacted file.
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
        try:
            runs_in = json.loads((footer(root, entry).metadata or {}).get(RUNS_KEY, b"[]"))
            newest[name] = CompactedFile(entry, name, number, frozenset(map(str, runs_in)))
        except (ValueError, TypeError) as error:
            raise broken(root, entry.name, error) from error
        superseded[name] = tuple(entry for _, entry in older)
    return Files(tuple(runs), newest, superseded)


def arrow_files(root: StoreRoot) -> tuple[FileSystem, str]:
    """Return a store's file system for pyarrow, and the root's path in that file system."""
    if root.local is not None:
        return LocalFileSystem(), root.url
    handler = FSSpecHandler(root.filesystem())  # type: ignore[abstract]  # the stubs miss what the class implements
    return PyFileSystem(handler), root.url.removeprefix("s3://")


def footer(root: StoreRoot, entry: Entry) -> pq.FileMetaData:
    """Read a Parquet file's footer."""
    filesystem, base = arrow_files(root)
    try:
        with filesystem.open_input_file(f"{base}/{entry.name}") as stream:
            return pq.ParquetFile(stream).metadata
    except (pa.ArrowException, OSError) as error:
        raise broken(root, entry.name, error) from error


def checked(root: StoreRoot, name: str) -> pq.ParquetFile:
    """Read a complete results file and check its digest; raise `StoreError` if the digest does not match."""
    try:
        content = root.read(name)
        # Do not use ``read_table``, which would turn the folder name ``month=…`` into a column.
        file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True)
        digest = (file.metadata.metadata or {}).get(_DIGEST.encode(), b"none")
        if hashlib.sha256(content.replace(digest, _PLACEHOLDER.encode())).hexdigest().encode() != digest:
            raise ValueError("its SHA-256 differs from the digest in its footer")
    except (pa.ArrowException, OSError, ValueError) as error:
        raise broken(root, name, error) from error
    return file


def read_rows(root: StoreRoot, name: str) -> pa.Table:
    """Read all rows of a results file and check its checksums; raise `StoreError` if the file is damaged."""
    try:
        return checked(root, name).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise broken(root, name, error) from error


def broken(root: StoreRoot, name: str, error: Exception) -> StoreError:
    """Return the error for a results file that cannot be read."""
    return StoreError(
        f"The results file {root.uri(name)} cannot be read: {error}.",
        hint="Move the damaged file out of the store. To find other problems, run: nightquant store check",
    )
