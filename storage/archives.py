"""A bundle as one file: ``.zip`` or ``.tar.zst``, the same bytes for the same bundle."""

from __future__ import annotations

import io
import os
import tarfile
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from storage.errors import ConfigurationError, StoreError
from storage.seal import check_sums

# The earliest time that a zip can hold; the same bundle must yield the same archive.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644


def export_bundle(folder: Path, target: Path, *, name: str, overwrite: bool = False) -> Path:
    """Write a bundle's folder, once its checksums are right, into a ``.zip`` or ``.tar.zst`` under ``<name>/``."""
    ending = next((ending for ending in _WRITERS if target.name.endswith(ending)), None)
    if ending is None:
        raise ConfigurationError(f"{target}: the name must end in {' or '.join(_WRITERS)}.")
    check_sums(folder)
    if target.exists() and not overwrite:
        raise ConfigurationError(f"{target} exists already.", hint="Use --force to replace it, or another name.")
    temporary = target.with_name(f".{target.name}-{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as stream:
            _WRITERS[ending](folder, name, stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _zip(folder: Path, name: str, stream: IO[bytes]) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in sorted(folder.iterdir()):
            info = zipfile.ZipInfo(f"{name}/{path.name}", _EPOCH)
            info.create_system, info.compress_type = 3, zipfile.ZIP_DEFLATED
            info.external_attr = (0o100000 | _MODE) << 16
            archive.writestr(info, path.read_bytes())


def _tar_zst(folder: Path, name: str, stream: IO[bytes]) -> None:
    import zstandard

    # A single thread: with more, the frame's layout would depend on their number.
    with (
        zstandard.ZstdCompressor(level=10).stream_writer(stream, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(folder.iterdir()):
            content = path.read_bytes()
            info = tarfile.TarInfo(f"{name}/{path.name}")
            info.size, info.mode, info.mtime = len(content), _MODE, 0
            archive.addfile(info, io.BytesIO(content))


_WRITERS: dict[str, Callable[[Path, str, IO[bytes]], None]] = {".zip": _zip, ".tar.zst": _tar_zst}
