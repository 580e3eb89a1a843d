"""The root of a store: a local folder or an object-store URL, with the few operations that the store needs."""

from __future__ import annotations

import abc
import errno
import hashlib
import os
import re
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from platformdirs import user_cache_path

from storage.errors import ConfigurationError, StoreError
from storage.locks import file_lock

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


@dataclass(frozen=True, order=True)
class Entry:
    """A file in the store: its name relative to the root, size in bytes, and write time in seconds since 1970."""

    name: str
    size: int
    modified: float


@dataclass(frozen=True)
class Stamped:
    """A file's content, its age in seconds on the store's clock, and an entity tag that is unique to the content."""

    content: bytes
    etag: str
    age_s: float


# Implementations by the scheme of the URL; s3fs, which an object store needs, is optional.
_IMPLEMENTATIONS = {"file": "storage.local_root:LocalRoot", "s3": "storage.object_root:ObjectRoot"}


class StoreRoot(abc.ABC):
    """The root of a store; a file is never visible before it is complete.

    File names are relative to the root. Every operation raises `StoreError` if the disk or server fails.
    """

    url: str  # the root's absolute path or URL
    local: Path | None = None  # the folder of a local store

    @staticmethod
    def of(place: StoreRoot | Path | str) -> StoreRoot:
        """Return the root for a path, a ``file://`` URL, an ``s3://bucket/prefix`` URL, or a root itself."""
        if isinstance(place, StoreRoot):
            return place
        text = str(place)
        found = re.match(r"^([a-z][a-z0-9+.-]+)://", text)
        scheme = found[1] if found else "file"
        if scheme not in _IMPLEMENTATIONS:
            raise ConfigurationError(
                f'The store "{text}" uses the {scheme}:// scheme, which is not supported.',
                hint="Use a local path or s3://bucket/prefix.",
            )
        try:
            implementation: Callable[[str | Path], StoreRoot] = resolve_name(_IMPLEMENTATIONS[scheme])
        except ImportError as error:
            raise ConfigurationError(
                f"The store {text} needs the s3 extra, which is not installed.",
                hint="Install the extra with: pip install 'nightquant[s3]'",
            ) from error
        return implementation(text if scheme == "s3" else Path(text.removeprefix("file://")).expanduser().absolute())

    def uri(self, name: str) -> str:
        """Return the file's absolute path or URL."""
        return f"{self.url}/{name}"

    @abc.abstractmethod
    def list(self, prefix: str) -> list[Entry]:
        """List all files under a folder, at any depth, sorted by name; listings are never cached."""

    @abc.abstractmethod
    def exists(self, name: str) -> bool:
        """Return whether the file exists."""

    @abc.abstractmethod
    def read(self, name: str) -> bytes:
        """Read a file; raise `FileNotFoundError` if the file is missing."""

    @abc.abstractmethod
    def digest(self, name: str) -> str:
        """Return a file's SHA-256 (64 hexadecimal digits); raise `FileNotFoundError` if it does not exist."""

    @abc.abstractmethod
    def stamped(self, name: str) -> Stamped | None:
        """Return a file's content, entity tag and age, or None if the file does not exist."""

    @abc.abstractmethod
    def swap(self, name: str, content: bytes, etag: str | None) -> str | None:
        """Replace a file if its tag is `etag` (None for a new file); return the new tag, or None if the tag differs."""

    @abc.abstractmethod
    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists; return whether it was written. Never overwrite a file, even in a race."""

    @abc.abstractmethod
    def put(self, name: str, content: bytes | Path) -> None:
        """Write or replace a file in one step; readers see either the old or the new content."""

    @abc.abstractmethod
    def publish(self, folder: Path, location: str, marker: str) -> bool:
        """Move or copy a folder, `marker` last; return False if a complete folder already exists at `location`."""

    @abc.abstractmethod
    def download(self, name: str, target: Path) -> None:
        """Copy a file to a local path in an existing folder; raise `FileNotFoundError` if it does not exist."""

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file if it exists."""

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Lock this store while the block runs; the lock for an object store excludes only processes on this host."""
        return file_lock(self.lock_folder() / name)

    def lock_folder(self) -> Path:
        """Return the folder for this store's lock files; an object store's folder is local to this host and user."""
        return self.local / ".locks" if self.local else cache_folder(self.url) / "locks"

    def filesystem(self) -> AbstractFileSystem | None:
        """Return the fsspec file system with which other libraries read ``s3://`` URLs, or None for a local folder."""
        return None


def check_writable(place: StoreRoot | Path | str) -> None:
    """Write and remove a small file, so that an unusable store raises `StoreError` before hours of work are lost.

    Also try two conditional writes that the store must refuse, because some object stores ignore conditions.
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
    """Return the error for an object store that does not support conditional writes."""
    return StoreError(
        f"The store {url} does not support the `{header}` header for uploads, so two writers could overwrite each "
        "other's files.",
        hint="Use S3, another object store that supports this header, or a local folder.",
    )


_chosen_cache = ""


def set_cache_folder(folder: str) -> None:
    """Set this process's folder for copies of remote files; ``""`` restores the default."""
    global _chosen_cache
    _chosen_cache = folder


def cache_folder(url: str) -> Path:
    """Return the folder below `cache_base` for copies from `url`."""
    return cache_base() / hashlib.sha256(url.encode()).hexdigest()[:16]


def cache_base() -> Path:
    """Return the folder from `set_cache_folder` or ``NIGHTQUANT_CACHE``; by default, a folder in the user's cache."""
    if chosen := _chosen_cache or os.environ.get("NIGHTQUANT_CACHE"):
        return Path(chosen).expanduser().absolute()
    return user_cache_path("nightquant")


def fsync(path: Path) -> None:
    """Flush a file or a folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and flush each folder to disk, so that the folders survive a power failure."""
    if not path.is_dir():
        make_folder(path.parent)
        try:
            path.mkdir(exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
        fsync(path.parent)


def is_inside(name: str) -> bool:
    """Return whether `name` is a path inside a folder, without characters that a file name should not contain."""
    path = PurePosixPath(name)
    leads_out = path.is_absolute() or ".." in path.parts or "\\" in name
    return bool(path.parts) and not leads_out and name.isprintable()
