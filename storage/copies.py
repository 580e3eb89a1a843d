"""Copies of an object store's bundles on this host: whole folders that many processes read and none changes."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

from storage.errors import BundleError
from storage.root import LocalRoot, StoreRoot, cache_folder
from storage.seal import SIGNATURE, SUMS, check_sums


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
    if _is_whole(kept, content):
        return kept
    with root.lock("copies"):
        if kept.exists() and not _is_whole(kept, content):
            kept.rename(copy.with_name(uuid.uuid4().hex))  # among the drafts, of which old ones are removed
        LocalRoot(cache).publish(copy, location, SUMS)
    return kept


def _content(folder: Path) -> str:
    """Return a name for what a bundle holds: its list, which names the rest, and its signature, which no list names."""
    signature = folder / SIGNATURE
    digest = hashlib.sha256((folder / SUMS).read_bytes())
    digest.update(signature.read_bytes() if signature.is_file() else b"")
    return digest.hexdigest()[:16]


def _is_whole(folder: Path, content: str) -> bool:
    try:
        check_sums(folder)
    except BundleError:
        return False
    return _content(folder) == content
