"""List a table's files, and select the files that contain the current rows.

``results/<table>/month=YYYY-MM/<run-id>.parquet``
    Rows of one run, in the month of publication.
``results/<table>/month=YYYY-MM/<run-id>.<workload>.parquet``
    Rows of one run and one workload; a run records each workload's measurements as soon as they are finished, and each
    workload's decisions as soon as they take effect.
``results/<table>/month=YYYY-MM/compacted-NNNN.parquet``
    All rows of a finished month; the file with the highest NNNN supersedes the others. The footer names the runs in the
    file, which replaces the runs' own files.

The footer of a results file contains the file's SHA-256, which is computed with a placeholder for the digest. Parquet's
checksums cover only pages, but a flipped bit in a header or footer can also change values.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

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
_COMPACTED = re.compile(r"^compacted-(\d{4,})$")
T = TypeVar("T")


def folder(table: Table) -> str:
    """Return the table's folder, relative to the root."""
    return f"results/{table.name}"


def part_name(run_id: str, part: str = "") -> str:
    """Return the name, without the suffix, of the file with a run's rows; `part` limits the rows to one workload."""
    return f"{run_id}.{part}" if part else run_id


def month_of(entry: Entry) -> str:
    """Return the month, as YYYY-MM, in whose folder a file is."""
    return PurePosixPath(entry.name).parent.name.removeprefix("month=")


@dataclass(frozen=True)
class CompactedFile:
    """The compacted file of a finished month; ``runs`` names the runs in the file."""

    entry: Entry
    number: int
    runs: frozenset[str]


@dataclass(frozen=True)
class Files:
    """A table's files at one moment: the runs' own files by `part_name`, and the compacted files by month."""

    runs: dict[str, Entry]
    compacted: dict[str, CompactedFile]
    superseded: tuple[Entry, ...]

    @property
    def current(self) -> list[Entry]:
        """Files, sorted by month, that together contain each row exactly once."""
        return sorted({self.file_of(name) for name in self.names})

    @cached_property
    def merged(self) -> frozenset[str]:
        """Names of all runs and parts in the compacted files."""
        return frozenset(run for file in self.compacted.values() for run in file.runs)

    @property
    def names(self) -> frozenset[str]:
        """Names of all runs and parts in the table, as returned by `part_name`."""
        return self.merged.union(self.runs)

    def file_of(self, name: str) -> Entry:
        """Return the file that contains the rows of a run or part; raise `KeyError` if no file contains them."""
        return next((file.entry for file in self.compacted.values() if name in file.runs), None) or self.runs[name]

    def files_of(self, run_id: str) -> set[Entry]:
        """Return the files that together contain the rows of the run and its parts; they may contain other rows."""
        return {self.file_of(name) for name in self.names if name == run_id or name.startswith(f"{run_id}.")}


def listed_again(read: Callable[[], T]) -> T:
    """Return the result of `read`; repeat it if a compaction has deleted a file that `read` had listed."""
    missing = ""
    while True:
        try:
            return read()
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError) or error.message == missing:
                raise
            missing = error.message


def find_files(root: StoreRoot, table: Table) -> Files:
    """List a table's files; ignore temporary files and files from other programs."""
    return listed_again(lambda: _list_files(root, table))


def _list_files(root: StoreRoot, table: Table) -> Files:
    runs: dict[str, Entry] = {}
    numbered: dict[str, list[tuple[int, Entry]]] = {}
    for entry in root.list(folder(table)):
        file = PurePosixPath(entry.name)
        if not file.match("month=*/*.parquet") or file.name.startswith("."):
            continue
        if match := _COMPACTED.match(file.stem):
            numbered.setdefault(month_of(entry), []).append((int(match[1]), entry))
        else:
            runs[file.stem] = entry
    compacted: dict[str, CompactedFile] = {}
    for month, entries in numbered.items():
        number, entry = max(entries)
        try:
            # Read only the footer, because a writer lists the files for each file that it adds.
            path = root.uri(entry.name).removeprefix("s3://")
            metadata = pq.read_metadata(path, filesystem=root.filesystem()).metadata or {}
            compacted[month] = CompactedFile(
                entry, number, frozenset(map(str, json.loads(metadata.get(RUNS_KEY, b""))))
            )
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise broken(root, entry.name, error) from error
    older = (entry for entries in numbered.values() for _, entry in sorted(entries)[:-1])
    return Files(runs, compacted, tuple(older))


def read_rows(root: StoreRoot, table: Table, name: str) -> pa.Table:
    """Read all rows of a results file, with NULL in columns that an old file lacks.

    Raise `StoreError` if the file is damaged or its digest does not match.
    """
    try:
        content = root.read(name)
        # Do not use ``read_table``, which would turn the folder name ``month=…`` into a column.
        file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True)
        digest = (file.metadata.metadata or {}).get(_DIGEST.encode(), b"none")
        if hashlib.sha256(content.replace(digest, _PLACEHOLDER.encode())).hexdigest().encode() != digest:
            raise ValueError("its SHA-256 differs from the digest in its footer")
        rows = file.read()
        for field in table.schema:
            if field.name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows.select(table.schema.names).cast(table.schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise broken(root, name, error) from error


def broken(root: StoreRoot, name: str, error: Exception) -> StoreError:
    """Return the error for a results file that cannot be read."""
    return StoreError(
        f"The results file {root.uri(name)} cannot be read: {error}.",
        hint="Move the damaged file out of the store. To find other problems, run: nightquant store check",
    )
