"""Folders of bundles on this host: drafts, temporary copies, and copies that many processes read and none changes."""

from __future__ import annotations

import hashlib
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from storage.errors import BundleError, writing
from storage.local_root import LocalRoot
from storage.root import StoreRoot, cache_folder
from storage.seal import SIGNATURE, SUMS, check_name, check_sums

_ABANDONED_S = 24 * 3600


@contextmanager
def draft(root: StoreRoot) -> Iterator[Path]:
    """Yield an empty folder in which to fill a bundle; remove it afterwards unless it was published."""
    # Beside the bundles, so that publishing is a rename; a remote store's drafts are in the cache.
    drafts = root.local / "handoff" / ".tmp" if root.local else cache_folder(root.url) / "drafts"
    folder = drafts / uuid.uuid4().hex
    with writing(root.url, drafts):
        drafts.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(drafts)
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


def _remove_abandoned(drafts: Path) -> None:
    """Remove what killed publishers left a day or more ago."""
    for folder in drafts.iterdir():
        with suppress(FileNotFoundError):  # its publisher has just made a bundle of it
            if folder.stat().st_mtime < time.time() - _ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)


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
