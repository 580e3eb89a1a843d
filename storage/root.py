"""The store's root: a local folder or an object-store URL, behind the few operations that the store needs."""

from __future__ import annotations

import abc
import errno
import hashlib
import os
import re
import unicodedata
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from pkgutil import resolve_name
from typing import TYPE_CHECKING, cast

from storage.errors import ConfigurationError, StoreError
from storage.locks import file_lock

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_LONGEST_PART = 255  # bytes, of every file system in use
_LONGEST = 1024


@dataclass(frozen=True, order=True)
class Entry:
    """A file in the store: its name relative to the root, its bytes, and when it was written (seconds since 1970)."""

    name: str
    size: int
    modified: float


@dataclass(frozen=True)
class Stamped:
    """A file's content, an entity tag that no other content of it has, and its age in seconds by the store's clock."""

    content: bytes
    etag: str
    age_s: float


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
            try:  # by name, because s3fs is optional
                return cast(StoreRoot, resolve_name("storage.object_root:ObjectRoot")(text))
            except ImportError as error:
                raise ConfigurationError(
                    f"The store {text} needs the s3 extra.", hint="Install it with: pip install 'nightquant[s3]'"
                ) from error
        if (scheme := re.match(r"^([a-z][a-z0-9+.-]+)://", text)) and scheme[1] != "file":
            raise ConfigurationError(
                f'The store "{text}" has the scheme {scheme[1]}://, which is not supported.',
                hint="Use a local path or s3://bucket/prefix.",
            )
        folder = Path(text.removeprefix("file://")).expanduser().absolute()
        # By name, because the module imports this one.
        return cast(StoreRoot, resolve_name("storage.local_root:LocalRoot")(folder))

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
        """Replace a file that has this tag (None: no file); return its new tag, or None if others were quicker."""

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
        """Hold a lock on this store while the block runs; on an object store, among this host's processes only."""
        return file_lock(self.lock_folder() / name, shared=shared)

    def lock_folder(self) -> Path:
        """The folder of this store's locks; on an object store it is one of this host and user."""
        return self.local / ".locks" if self.local else cache_folder(self.url) / "locks"

    def filesystem(self) -> AbstractFileSystem | None:
        """The fsspec file system through which others read ``s3://``; None for a folder."""
        return None


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


def why_unsafe(name: str) -> str:
    """Why a relative name must not be joined to a folder; "" if it may be. A back slash counts as a separator."""
    path = PurePosixPath(name)
    if not path.parts:
        return "it is empty"
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        return "it would land outside its folder"
    if "\0" in name or any(unicodedata.category(character) == "Cs" for character in name):
        return "it is no name of a file"
    if len(name.encode()) > _LONGEST or max(len(part.encode()) for part in path.parts) > _LONGEST_PART:
        return "it is too long"
    return ""
