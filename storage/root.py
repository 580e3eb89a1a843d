"""The store's root: a local folder or an object-store URL, behind the few operations that the store needs."""

from __future__ import annotations

import abc
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigurationError, unwritable

if TYPE_CHECKING:
    import pyarrow.fs


@dataclass(frozen=True)
class Entry:
    """A file in the store: its name relative to the root, its bytes, and when it was written (seconds since 1970)."""

    name: str
    size: int
    modified: float


class StoreRoot(abc.ABC):
    """Where a store lies; names are relative to it and use forward slashes.

    A file is never visible before it is whole: `put_new` and `put` write elsewhere first (or, on an object store, in
    one request) and an error in between leaves nothing that a reader could see. What the store's place refuses is a
    `StoreError` from every operation.
    """

    url: str

    @staticmethod
    def of(place: StoreRoot | Path | str) -> StoreRoot:
        """Open a root from a path, a ``file://`` or ``s3://bucket/prefix`` URL, or a root.

        Raises
        ------
        ConfigurationError
            The URL has another scheme, or the extra that it needs is not installed.
        """
        if isinstance(place, StoreRoot):
            return place
        text = str(place)
        if text.startswith("s3://"):
            from storage.object_root import ObjectRoot

            return ObjectRoot(text)
        if (scheme := re.match(r"^([a-z][a-z0-9+.-]+)://", text)) and scheme[1] != "file":
            raise ConfigurationError(
                f'The store "{text}" has the scheme {scheme[1]}://, which is not supported.',
                hint="Use a local path or s3://bucket/prefix.",
            )
        from storage.local_root import LocalRoot

        return LocalRoot(Path(text.removeprefix("file://")).expanduser().absolute())

    @property
    @abc.abstractmethod
    def local(self) -> Path | None:
        """The root's folder, or None on an object store."""

    @abc.abstractmethod
    def uri(self, name: str) -> str:
        """The file's absolute path or URL."""

    @abc.abstractmethod
    def list(self, prefix: str) -> list[Entry]:
        """Every file under a folder, at any depth, sorted by name; always the present state; [] where there is none."""

    @abc.abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""

    @abc.abstractmethod
    def read(self, name: str) -> bytes:
        """A file's bytes; `FileNotFoundError` where there is none, `StoreError` where it cannot be read."""

    @abc.abstractmethod
    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file unless the name is taken; False where it is. Never overwrites, even in a race."""

    @abc.abstractmethod
    def put(self, name: str, content: bytes | Path) -> None:
        """Write or replace a file in one step; readers see the old or the new content."""

    @abc.abstractmethod
    def download(self, name: str, target: Path) -> None:
        """Copy a file to a local path, whose folder exists; `FileNotFoundError` where there is none."""

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file; good where it is gone already."""

    @abc.abstractmethod
    def lock(self, name: str, *, shared: bool = False) -> AbstractContextManager[None]:
        """Hold a lock on this store; released by the operating system however the process ends.

        On an object store it excludes the processes of this host only.
        """

    @abc.abstractmethod
    def arrow(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """A pyarrow file system and the root's path in it."""

    @abc.abstractmethod
    def duckdb_filesystem(self) -> Any | None:
        """The fsspec file system to register with DuckDB, or None where it needs none."""


def cache_folder() -> Path:
    """Where copies of what lies on an object store are kept: ``NIGHTQUANT_CACHE``, or the user's cache folder."""
    chosen = os.environ.get("NIGHTQUANT_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nightquant"


def url_key(url: str) -> str:
    """A short folder name for what is kept about a URL."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


@contextmanager
def file_lock(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold ``flock`` on a file, which is made where it is missing and never removed.

    Raises
    ------
    StoreError
        The file cannot be made, opened or locked.
    """
    import fcntl

    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except OSError as error:
            raise unwritable(path, error) from error
        yield


def fsync(path: Path) -> None:
    """Flush a file or a folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
