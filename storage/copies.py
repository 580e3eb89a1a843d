"""Folders of bundles on this host: drafts, temporary copies, copies that many processes read, and archives."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from storage.errors import BundleError, ConfigurationError, StoreError, writing
from storage.local_root import LocalRoot
from storage.root import StoreRoot, cache_folder
from storage.seal import SIGNATURE, SUMS, changed, check_name, check_sums, listed

_ABANDONED_S = 24 * 3600
# The earliest time that a zip can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644
_PIECE = 1 << 20


@contextmanager
def draft(root: StoreRoot) -> Iterator[Path]:
    """Yield an empty folder in which to fill a bundle; remove it afterwards unless it was published."""
    # Beside the bundles, so that publishing is a rename; a remote store's drafts are in the cache.
    drafts = root.local / "handoff" / ".tmp" if root.local else cache_folder(root.url) / "drafts"
    folder = drafts / uuid.uuid4().hex
    with writing(root.url, drafts):
        drafts.mkdir(parents=True, exist_ok=True)
        for abandoned in drafts.iterdir():
            with suppress(FileNotFoundError):  # its publisher has just made a bundle of it
                if abandoned.stat().st_mtime < time.time() - _ABANDONED_S:
                    shutil.rmtree(abandoned, ignore_errors=True)
        try:
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def downloaded(root: StoreRoot, location: str) -> Iterator[Path]:
    """Yield a bundle's folder, whatever it holds: the store's own, or a temporary copy from an object store."""
    if root.local is not None:
        yield root.local / location
        return
    with draft(root) as copy:
        for entry in root.list(location):
            name = entry.name.removeprefix(f"{location}/")
            check_name(root.uri(location), name)
            root.download(entry.name, copy / name)
        yield copy


def keep_copy(root: StoreRoot, copy: Path, name: str) -> Path:
    """Move a checked copy of a bundle to where every process of this host reads it; return that folder.

    The folder is named by the content. If another process has made it already, that one stays, under its readers. If
    it was damaged since, the damaged one is moved aside.

    Parameters
    ----------
    copy
        A folder below the store's cache, whose files its ``SHA256SUMS`` lists.
    name
        The folder's name below the one that the content names.
    """
    cache, content = cache_folder(root.url), _content(copy)
    location = f"bundles/{content}/{name}"
    kept = cache / location
    with writing(root.url, cache):
        if _is_complete(kept, content):
            return kept
        with root.lock("copies"):
            if kept.exists() and not _is_complete(kept, content):
                kept.rename(copy.with_name(uuid.uuid4().hex))  # among the drafts, of which old ones are removed
            LocalRoot(cache).publish(copy, location, SUMS)
    return kept


def _content(folder: Path) -> str:
    """Return a name for what a bundle holds: its list, which names the rest, and its signature, which no list names."""
    signature = folder / SIGNATURE
    digest = hashlib.sha256((folder / SUMS).read_bytes())
    digest.update(signature.read_bytes() if signature.is_file() else b"")
    return digest.hexdigest()[:16]


def _is_complete(folder: Path, content: str) -> bool:
    try:
        check_sums(folder)
    except BundleError:
        return False
    return _content(folder) == content


def export_bundle(folder: Path, target: Path, *, name: str, overwrite: bool = False) -> Path:
    """Write a bundle's folder, once checked, into a ``.zip`` under ``<name>/``; a bundle gives the same bytes."""
    if target.suffix != ".zip":
        raise ConfigurationError(f"{target}: the name must end in .zip.")
    sums = check_sums(folder)
    digests = listed(folder, sums) | {SUMS: sums}
    if target.exists() and not overwrite:
        raise ConfigurationError(f"{target} exists already.", hint="Use --force to replace it, or another name.")
    temporary = target.with_name(f".{target.name}-{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as stream:
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
                for file in sorted({*digests, SIGNATURE}):
                    # The signature is in no list; it is good for this one, or for none.
                    if file in digests or (folder / file).is_file():
                        _add(archive, folder, file, name, digests.get(file))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _add(archive: zipfile.ZipFile, folder: Path, file: str, name: str, digest: str | None) -> None:
    """Add a file, read once and in pieces; raise if it is not what the list names."""
    try:
        stream = (folder / file).open("rb")
    except OSError as error:
        raise _unreadable(folder, file, error) from error
    info = zipfile.ZipInfo(f"{name}/{file}", _EPOCH)
    info.create_system, info.compress_type, info.external_attr = 3, zipfile.ZIP_DEFLATED, _MODE << 16
    with stream:
        left = os.fstat(stream.fileno()).st_size
        info.file_size = left  # by which the archive decides whether the entry needs 64-bit sizes
        found = hashlib.sha256()
        with archive.open(info, "w") as entry:
            while left:
                try:
                    piece = stream.read(min(_PIECE, left))
                except OSError as error:
                    raise _unreadable(folder, file, error) from error
                if not piece:
                    raise changed(folder, file)
                found.update(piece)
                entry.write(piece)
                left -= len(piece)
    if digest is not None and found.hexdigest() != digest:
        raise changed(folder, file)


def _unreadable(folder: Path, name: str, error: OSError) -> BundleError:
    return BundleError(f"{folder}: {name} cannot be read: {error.strerror or error}.")
