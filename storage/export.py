"""A bundle as one archive, a ``.zip`` or ``.tar.zst``: the same bundle yields the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import uuid
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from storage.errors import BundleError, ConfigurationError, StoreError
from storage.seal import SIGNATURE, SUMS, changed, check_sums, listed

# The earliest time that a zip can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644
_PIECE = 1 << 20


def export_bundle(folder: Path, target: Path, *, name: str, overwrite: bool = False) -> Path:
    """Write a bundle's folder, once its checksums are right, into a ``.zip`` or ``.tar.zst`` under ``<name>/``."""
    ending = next((ending for ending in _WRITERS if target.name.endswith(ending)), None)
    if ending is None:
        raise ConfigurationError(f"{target}: the name must end in {' or '.join(_WRITERS)}.")
    if ending == ".tar.zst" and find_spec("zstandard") is None:
        raise ConfigurationError(
            f"{target}: zstandard is not installed.",
            hint="Name a .zip with --output, or install it: pip install 'nightquant[zstd]'.",
        )
    files = _checked_files(folder, check_sums(folder))
    if target.exists() and not overwrite:
        raise ConfigurationError(f"{target} exists already.", hint="Use --force to replace it, or another name.")
    temporary = target.with_name(f".{target.name}-{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as stream:
            _WRITERS[ending](files, name, stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


class _File:
    """A bundle's file that is read once, in pieces, and what was read of it."""

    def __init__(self, folder: Path, name: str, stream: IO[bytes]) -> None:
        self.name = name
        self.size = os.fstat(stream.fileno()).st_size
        self.digest = hashlib.sha256()
        self._folder, self._stream, self._left = folder, stream, self.size

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes of those that the file had when it was opened."""
        wanted = self._left if size < 0 else min(size, self._left)
        try:
            piece = self._stream.read(wanted)
        except OSError as error:
            raise _unreadable(self._folder, self.name, error) from error
        if len(piece) < wanted:
            raise changed(self._folder, self.name)
        self._left -= wanted
        self.digest.update(piece)
        return piece


def _checked_files(folder: Path, sha256sums: str) -> Iterator[_File]:
    """Yield each file in order, and raise once it was read if it is not what the list names."""
    digests = listed(folder, sha256sums) | {SUMS: sha256sums}
    for name in sorted({*digests, SIGNATURE}):
        if name == SIGNATURE and not (folder / SIGNATURE).is_file():
            continue
        try:
            stream = (folder / name).open("rb")
        except OSError as error:
            raise _unreadable(folder, name, error) from error
        with stream:
            file = _File(folder, name, stream)
            yield file
            # The signature is in no list; it is good for this one, or for none.
            if name != SIGNATURE and file.digest.hexdigest() != digests[name]:
                raise changed(folder, name)


def _unreadable(folder: Path, name: str, error: OSError) -> BundleError:
    return BundleError(f"{folder}: {name} cannot be read: {error.strerror or error}.")


def _zip(files: Iterator[_File], name: str, stream: IO[bytes]) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for file in files:
            info = zipfile.ZipInfo(f"{name}/{file.name}", _EPOCH)
            info.create_system, info.compress_type = 3, zipfile.ZIP_DEFLATED
            info.external_attr = (0o100000 | _MODE) << 16
            info.file_size = file.size  # by which the archive decides whether the entry needs 64-bit sizes
            with archive.open(info, "w") as entry:
                shutil.copyfileobj(file, entry, _PIECE)


def _tar_zst(files: Iterator[_File], name: str, stream: IO[bytes]) -> None:
    import zstandard

    # A single thread: with more, the frame's layout would depend on their number.
    with (
        zstandard.ZstdCompressor(level=10).stream_writer(stream, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file in files:
            info = tarfile.TarInfo(f"{name}/{file.name}")
            info.size, info.mode, info.mtime = file.size, _MODE, 0
            archive.addfile(info, file)


_WRITERS: dict[str, Callable[[Iterator[_File], str, IO[bytes]], None]] = {".zip": _zip, ".tar.zst": _tar_zst}
