"""The store's root: a local folder or an object-store URL, behind the few operations that the store needs."""

from __future__ import annotations

import abc
import errno
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from storage.digest import file_digest
from storage.errors import ConfigurationError, StoreError, unwritable
from storage.locks import file_lock
from storage.transient import is_transient

if TYPE_CHECKING:
    import pyarrow.fs
    from fsspec import AbstractFileSystem


@dataclass(frozen=True, order=True)
class Entry:
    """A file in the store: its name relative to the root, its bytes, and when it was written (seconds since 1970)."""

    name: str
    size: int
    modified: float


@dataclass(frozen=True)
class Stamped:
    """A file's content, and an entity tag that another content of this file does not have."""

    content: bytes
    etag: str


class StoreRoot(abc.ABC):
    """Where a store is; names are relative to it and use forward slashes.

    A file is never visible before it is complete. Every operation raises `StoreError` when the place refuses it.
    """

    url: str  # the root's absolute path or URL
    local: Path | None = None  # its folder, unless it is on an object store

    @staticmethod
    def of(place: StoreRoot | Path | str) -> StoreRoot:
        """Open a root from a path, a ``file://`` or ``s3://bucket/prefix`` URL, or a root."""
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
        return LocalRoot(Path(text.removeprefix("file://")).expanduser().absolute())

    def uri(self, name: str) -> str:
        """The file's absolute path or URL."""
        return f"{self.url}/{name}"

    @abc.abstractmethod
    def list(self, prefix: str) -> list[Entry]:
        """List every file under a folder, at any depth, sorted by name; never cached; [] if there is none."""

    @abc.abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""

    @abc.abstractmethod
    def read(self, name: str) -> bytes:
        """Read a file; `FileNotFoundError` if there is none."""

    @abc.abstractmethod
    def digest(self, name: str) -> str:
        """Return a file's SHA-256 (64 hexadecimal digits), read in pieces; `FileNotFoundError` if there is none."""

    @abc.abstractmethod
    def stamped(self, name: str) -> Stamped | None:
        """Read a file with its entity tag; None if there is none."""

    @abc.abstractmethod
    def swap(self, name: str, content: bytes, etag: str | None) -> str | None:
        """Replace a file that still has this entity tag, or write it if there was none (None); return its new tag.

        Return None, and change nothing, if another writer was quicker.
        """

    @abc.abstractmethod
    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file unless the name is taken; False if it is. Never overwrites, even in a race."""

    @abc.abstractmethod
    def put(self, name: str, content: bytes | Path) -> None:
        """Write or replace a file in one step; readers see the old or the new content."""

    @abc.abstractmethod
    def publish(self, folder: Path, location: str, marker: str) -> bool:
        """Move or copy a folder into the store, the file `marker` last; False if `location` is complete already."""

    @abc.abstractmethod
    def download(self, name: str, target: Path) -> None:
        """Copy a file to a local path, whose folder exists; `FileNotFoundError` if there is none."""

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file if it is there."""

    def lock(self, name: str, *, shared: bool = False) -> AbstractContextManager[None]:
        """Hold a lock on this store until the block or the process ends.

        On an object store it excludes only the processes of this host and user; conditional puts keep others apart, and
        `lease` a whole night.
        """
        return file_lock(self.lock_folder() / name, shared=shared)

    def lease(self, name: str, content: bytes, is_over: Callable[[bytes], bool]) -> AbstractContextManager[bytes]:
        """Hold a lease among hosts, as `storage.lease.leased`; in a folder the kernel's lock is enough."""
        return nullcontext(b"")

    def lock_folder(self) -> Path:
        """The folder of this store's locks; on an object store it is one of this host and user."""
        return self.local / ".locks" if self.local else cache_folder(self.url) / "locks"

    @abc.abstractmethod
    def arrow(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """Open a pyarrow file system, with the root's path in it."""

    def duckdb_filesystem(self) -> AbstractFileSystem | None:
        """The fsspec file system to register with DuckDB, or None if it needs none."""
        return None


class LocalRoot(StoreRoot):
    """A store in a local folder, which is created on first write."""

    local: Path

    def __init__(self, folder: Path) -> None:
        self.local = folder
        self.url = str(folder)

    def list(self, prefix: str) -> list[Entry]:
        """List every file under a folder, sorted by name."""
        found = []
        with self._reading():
            for folder, _, names in os.walk(self.local / prefix, onerror=_raise_unless_missing):
                for name in names:
                    path = Path(folder, name)
                    with suppress(FileNotFoundError):  # removed since it was listed, as temporary files are
                        status = path.stat()
                        name = path.relative_to(self.local).as_posix()
                        found.append(Entry(name, status.st_size, status.st_mtime))
        return sorted(found)

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        with self._reading():
            return (self.local / name).is_file()

    def read(self, name: str) -> bytes:
        """Read a file."""
        with self._reading():
            return (self.local / name).read_bytes()

    def digest(self, name: str) -> str:
        """Return a file's SHA-256, read in pieces."""
        with self._reading():
            return file_digest(self.local / name)

    def stamped(self, name: str) -> Stamped | None:
        """Read a file; its tag is the digest of its content."""
        try:
            content = self.read(name)
        except FileNotFoundError:
            return None
        return Stamped(content, hashlib.sha256(content).hexdigest())

    def swap(self, name: str, content: bytes, etag: str | None) -> str | None:
        """Replace a file if it still has this tag: under a lock, read it again, then `put`."""
        with self.lock("swap"):
            found = self.stamped(name)
            if (found.etag if found else None) != etag:
                return None
            self.put(name, content)
        return hashlib.sha256(content).hexdigest()

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file unless the name is taken: temporary name, fsync, link, fsync of the folder."""
        with self._written_beside(name, content) as (temporary, target):
            try:
                target.hardlink_to(temporary)
            except FileExistsError:
                return False
        return True

    def put(self, name: str, content: bytes | Path) -> None:
        """Write or replace a file: temporary name, fsync, rename, fsync of the folder."""
        with self._written_beside(name, content) as (temporary, target):
            temporary.replace(target)

    def publish(self, folder: Path, location: str, marker: str) -> bool:
        """Move a folder of this file system into the store: fsync, rename, fsync of the folder above."""
        final = self.local / location
        with self._writing():
            for path in folder.rglob("*"):
                fsync(path)
            fsync(folder)
            make_folder(final.parent)
            try:
                folder.rename(final)
            except OSError:
                if (final / marker).is_file():
                    return False
                if not final.exists():
                    raise
                # Half a folder, the rest of which a kill or a person has removed.
                aside = folder.with_name(uuid.uuid4().hex)
                final.rename(aside)
                folder.rename(final)
                shutil.rmtree(aside, ignore_errors=True)
            fsync(final.parent)
        return True

    def download(self, name: str, target: Path) -> None:
        """Copy a file to a local path."""
        with self._reading():
            shutil.copyfile(self.local / name, target)

    def delete(self, name: str) -> None:
        """Remove a file."""
        with self._writing():
            (self.local / name).unlink(missing_ok=True)

    def arrow(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """Open pyarrow's local file system."""
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), self.url

    @contextmanager
    def _written_beside(self, name: str, content: bytes | Path) -> Iterator[tuple[Path, Path]]:
        """Yield a complete file under a temporary name, and the path at which it belongs."""
        target = self.local / name
        # No suffix of the final name: readers' globs (*.parquet) must not match a half-written file.
        temporary = target.with_name(f".{target.stem}-{uuid.uuid4().hex}.tmp")
        with self._writing(), ExitStack() as stack:
            make_folder(target.parent)
            stack.callback(temporary.unlink, missing_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, temporary)
            else:
                temporary.write_bytes(content)
            fsync(temporary)
            yield temporary, target
            fsync(target.parent)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritable(self.url, error) from error

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(
                f"The store {self.url} cannot be read: {error}.",
                hint="Fix the permissions or the disk, or name another store with --store.",
                transient=is_transient(error),
            ) from error


def check_writable(place: StoreRoot | Path | str) -> None:
    """Write and remove a small file, so that a `StoreError` comes before hours of work are spent on it.

    Two writes under conditions that do not hold must be refused, because some object stores ignore such conditions.
    """
    root = StoreRoot.of(place)
    name = f".probe/{uuid.uuid4().hex}"
    root.put(name, b"nightquant\n")
    try:
        for header, etag in (("If-None-Match", None), ("If-Match", f'"{"0" * 32}"')):
            if root.swap(name, b"replaced\n", etag) is not None:
                raise unconditional(root.url, header)
    finally:
        root.delete(name)


def unconditional(url: str, header: str) -> StoreError:
    """Return the error for an object store in which one writer can overwrite another's bytes unseen."""
    return StoreError(
        f"The store {url} does not support `{header}` for puts.",
        hint="Use an object store that does, as S3 does, or a folder: otherwise two writers overwrite each other.",
    )


_chosen_cache = ""


def set_cache_folder(folder: str) -> None:
    """Keep copies of object stores in `folder` from now on, in this process alone; "" goes back to the default."""
    global _chosen_cache
    _chosen_cache = folder


def cache_folder(url: str) -> Path:
    """The folder for copies from `url`, below `cache_base`."""
    return cache_base() / hashlib.sha256(url.encode()).hexdigest()[:16]


def cache_base() -> Path:
    """The chosen folder, that of ``NIGHTQUANT_CACHE``, or the user's cache folder."""
    if chosen := _chosen_cache or os.environ.get("NIGHTQUANT_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nightquant"


def fsync(path: Path) -> None:
    """Flush a file or a folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, on the disk too: what is flushed in a folder is lost with the folder's name."""
    if not path.is_dir():
        make_folder(path.parent)
        try:
            path.mkdir(exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
        fsync(path.parent)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
