"""Data sets that come as a folder or as an archive, here or far away; archives are never trusted.

A member that would land outside the target folder, a link, a device, a name that occurs twice and more bytes than
allowed (whatever the headers say) all refuse the archive as a whole.
"""

from __future__ import annotations

import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

from storage.errors import ConfigurationError, InputError, StoreError
from storage.transfer import fetch, local_path
from tasks.job import Progress, silent

MAX_MEMBERS = 5_000_000
_PIECE = 1 << 20

# What zipfile and tarfile raise for broken archives, with what the decompressors beneath them raise.
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError, EOFError, NotImplementedError, ValueError)


@dataclass(frozen=True)
class DataSource:
    """A folder of files; ``sha256`` is the archive's that it comes from, "" where it is a folder already.

    For an archive, `folder` downloads and extracts when it is first called, so that nothing is transferred where the
    SHA-256 alone tells that everything is in the store.
    """

    sha256: str
    folder: Callable[[], Path]


@contextmanager
def open_source(
    uri: str, downloads: Path, *, sha256: str | None, max_bytes: int, progress: Progress = silent
) -> Iterator[DataSource]:
    """Give a folder of files from a directory or an archive (.zip, .tar, .tar.gz, .tar.bz2, .tar.xz).

    Parameters
    ----------
    uri
        A local path, ``file://``, or anything :func:`storage.transfer.fetch` takes.
    downloads
        A folder for downloads and, until the block ends, for what is extracted.
    sha256
        The archive's; required for a remote one.
    max_bytes
        Limit of the archive and of what comes out of it.

    Raises
    ------
    ConfigurationError
        The URI is not allowed, or the SHA-256 is missing or given for a directory.
    InputError
        The data cannot be had, or the archive is refused.
    """
    local = local_path(uri)
    if local is not None and local.is_dir():
        if sha256 is not None:
            raise ConfigurationError(f"{uri}: sha256 is for archives, and this is a directory.", hint="Leave it out.")
        yield DataSource("", lambda: local)
        return
    with ExitStack() as stack:
        archive = stack.enter_context(fetch(uri, downloads, sha256=sha256, max_bytes=max_bytes, progress=progress))

        def extracted() -> Path:
            path = archive.path()
            downloads.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="extracted-", dir=downloads))
            extract(path, Path(folder), max_bytes=max_bytes, shown=uri)
            return Path(folder)

        yield DataSource(archive.sha256, extracted)


def extract(archive: Path, folder: Path, *, max_bytes: int, shown: str = "") -> None:
    """Extract an archive's regular files into an existing, empty folder.

    Raises
    ------
    InputError
        The archive is damaged, of no known kind, larger than allowed, or holds anything but files and folders inside
        the target.
    StoreError
        The folder cannot be written.
    """
    shown = shown or str(archive)
    try:
        budget = _Budget(shown, max_bytes)
        if zipfile.is_zipfile(archive):
            _extract_zip(archive, folder, budget)
        elif tarfile.is_tarfile(archive):
            _extract_tar(archive, folder, budget)
        else:
            raise InputError(f"{shown}: neither a directory nor a .zip or .tar.gz archive.")
    except _DAMAGED as error:
        raise InputError(f"{shown}: the archive is damaged or of an unknown kind: {error}.") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise InputError(f"{shown}: refused, because a name occurs twice: {Path(error.filename).name}.") from error
    except OSError as error:
        if not isinstance(error.filename, str) or str(folder) not in error.filename:
            raise InputError(f"{shown}: the archive cannot be read: {error.strerror or error}.") from error
        raise StoreError(f"{folder}: cannot be written: {error.strerror or error}.", hint="Free some space.") from error


def _extract_zip(archive: Path, folder: Path, budget: _Budget) -> None:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            # The upper half holds Unix permissions and the kind of file, or zero where the writer was no Unix.
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise budget.refuse(member.filename, "it is a link or a device")
            if member.flag_bits & 0x1:
                raise budget.refuse(member.filename, "it is encrypted")
            target = budget.target(folder, member.filename)
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                with members.open(member) as content:
                    budget.copy(content, target)


def _extract_tar(archive: Path, folder: Path, budget: _Budget) -> None:
    with tarfile.open(archive, "r:*") as members:
        for member in members:
            if not member.isreg() and not member.isdir():
                raise budget.refuse(member.name, "it is a link or a device")
            target = budget.target(folder, member.name)
            content = members.extractfile(member)
            if content is None:
                target.mkdir(parents=True, exist_ok=True)
            else:
                with content:
                    budget.copy(content, target)
            # Otherwise tarfile keeps every member that it has seen.
            members.members = []  # type: ignore[attr-defined]


class _Budget:
    """What an archive may still put into the folder."""

    def __init__(self, shown: str, max_bytes: int) -> None:
        self._shown = shown
        self._max_bytes = max_bytes
        self._bytes = 0
        self._members = 0

    def refuse(self, name: str, reason: str) -> InputError:
        return InputError(
            f"{self._shown}: refused, because of its member {name!r}: {reason}.",
            hint="Check where the archive comes from; pack it again with plain files and folders only.",
        )

    def target(self, folder: Path, name: str) -> Path:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise self.refuse(name, f"there are more than {MAX_MEMBERS} members")
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
            raise self.refuse(name, "it would land outside the target folder")
        return folder / path

    def copy(self, content: IO[bytes], target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            while piece := content.read(_PIECE):
                self._bytes += len(piece)
                if self._bytes > self._max_bytes:
                    raise InputError(
                        f"{self._shown}: holds more than {self._max_bytes} bytes.", hint="Raise max_bytes if it may."
                    )
                file.write(piece)
