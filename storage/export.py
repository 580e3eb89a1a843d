"""A bundle as one archive, a ``.zip``: the same bundle yields the same bytes."""

from __future__ import annotations

import hashlib
import os
import uuid
import zipfile
from pathlib import Path

from storage.errors import BundleError, ConfigurationError, StoreError
from storage.seal import SIGNATURE, SUMS, changed, check_sums, listed

# The earliest time that a zip can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644
_PIECE = 1 << 20


def export_bundle(folder: Path, target: Path, *, name: str, overwrite: bool = False) -> Path:
    """Write a bundle's folder, once its checksums are right, into a ``.zip`` under ``<name>/``."""
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
