"""Manage bundle folders on this host: drafts, temporary copies, shared copies and archives."""

from __future__ import annotations

import hashlib
import shutil
import time
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from storage.errors import BundleError, ConfigurationError, StoreError, writing
from storage.local_root import LocalRoot
from storage.root import StoreRoot, cache_folder, fsync
from storage.seal import SIGNATURE, SUMS, check_name, check_sums

_ABANDONED_S = 24 * 3600
# Zip files cannot store times before 1980.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644


@contextmanager
def draft(root: StoreRoot) -> Iterator[Path]:
    """Yield an empty folder for a new bundle; after the block, remove the folder unless it was published."""
    # Keep drafts next to the bundles, so that publishing is only a rename. Keep an object store's drafts in the cache.
    drafts = root.local / "handoff" / ".tmp" if root.local else cache_folder(root.url) / "drafts"
    folder = drafts / uuid.uuid4().hex
    with writing(root.url, drafts):
        drafts.mkdir(parents=True, exist_ok=True)
        for abandoned in drafts.iterdir():
            with suppress(FileNotFoundError):  # another process has just published the draft
                if abandoned.stat().st_mtime < time.time() - _ABANDONED_S:
                    shutil.rmtree(abandoned, ignore_errors=True)
        try:
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def downloaded(root: StoreRoot, location: str) -> Iterator[Path]:
    """Yield a bundle's folder without checking the files; for an object store, yield a temporary copy."""
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
    """Move a checked copy of a bundle to a folder that all processes on this host share; return the new folder.

    The bundle's content determines the name of the parent folder. An existing folder is kept, because other processes
    may be reading its files. A damaged folder is renamed, and removed later.
    """
    cache, content = cache_folder(root.url), _content_name(copy)
    location = f"bundles/{content}/{name}"
    folder = cache / location
    with writing(root.url, cache):
        if _is_complete(folder, content):
            return folder
        with root.lock("copies"):
            if folder.exists() and not _is_complete(folder, content):
                folder.rename(copy.with_name(uuid.uuid4().hex))  # `draft` removes the renamed folder later
            LocalRoot(cache).publish(copy, location, SUMS)
    return folder


def _content_name(folder: Path) -> str:
    """Return a name for a bundle's content: a digest of ``SHA256SUMS`` and the signature."""
    signature = folder / SIGNATURE
    digest = hashlib.sha256((folder / SUMS).read_bytes())
    digest.update(signature.read_bytes() if signature.is_file() else b"")
    return digest.hexdigest()[:16]


def _is_complete(folder: Path, content: str) -> bool:
    try:
        check_sums(folder)
    except BundleError:
        return False
    return _content_name(folder) == content


def export_bundle(folder: Path, target: Path, *, name: str, overwrite: bool = False) -> Path:
    """Check a bundle, and write it to a zip archive as the folder ``<name>/``.

    Identical bundles yield identical archives.
    """
    if target.suffix != ".zip":
        raise ConfigurationError(f"{target} is not the name of a zip archive. Choose a name that ends in .zip.")
    if target.exists() and not overwrite:
        raise ConfigurationError(
            f"{target} already exists.", hint="Use --force to replace the file, or choose another name."
        )
    check_sums(folder)
    temporary = target.with_name(f".{target.name}-{uuid.uuid4().hex}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for path in sorted(folder.iterdir()):
                info = zipfile.ZipInfo(f"{name}/{path.name}", _EPOCH)
                info.create_system, info.compress_type, info.external_attr = 3, zipfile.ZIP_DEFLATED, _MODE << 16
                info.file_size = path.stat().st_size  # zipfile needs the size to choose 64-bit fields for a large file
                with path.open("rb") as stream, archive.open(info, "w") as entry:
                    shutil.copyfileobj(stream, entry)
        fsync(temporary)
        temporary.replace(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target
