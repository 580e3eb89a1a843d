"""Open a data set from a folder or an archive. Archives may be remote or malicious.

Extraction refuses an archive that contains a path outside the target folder, a link, a device, a duplicate name, or too
many bytes.
"""

from __future__ import annotations

import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO, Self

from storage.errors import ConfigurationError, InputError, StoreError, shown
from storage.root import why_unsafe
from storage.transfer import Source, fetch, local_path
from tasks.job import Progress, silent

MAX_MEMBERS = 5_000_000
_PIECE = 1 << 20
_LONGEST_HEADER = 1 << 20
_EXTENSIONS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, b"X")

# One entry for each member of an archive: the name, the reason to refuse the member (``""`` if there is none), and the
# content (None for a folder).
_Members = Iterator[tuple[str, str, IO[bytes] | None]]

# Errors that zipfile, tarfile and their decompressors raise for broken archives.
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError, EOFError, NotImplementedError, ValueError)


@contextmanager
def open_source(
    uri: str, downloads: Path, *, sha256: str | None, max_bytes: int, progress: Progress = silent
) -> Iterator[Source]:
    """Open a directory or an archive (.zip, .tar, .tar.gz, .tar.bz2, .tar.xz) as a folder of files.

    `Source.sha256` is the archive's digest, or ``""`` for a directory. The first call to `Source.path` downloads and
    extracts an archive. A caller that finds the digest in the store does not need to call `Source.path`. Archives are
    downloaded to `downloads`, which also contains the extracted files until the ``with`` block ends. `max_bytes` limits
    the archive's size and the total size of the extracted files. See `storage.transfer.fetch` for the allowed URIs.

    Raises
    ------
    ConfigurationError
        The URI is not allowed, a required SHA-256 is missing, or a SHA-256 is given for a directory.
    InputError
        The data is not available, or the archive is damaged, unsafe, too large, or in an unknown format.
    StoreError
        The folder for downloads is not writable.
    """
    local = local_path(uri)
    if local is not None and local.is_dir():
        if sha256 is not None:
            raise ConfigurationError(
                f"{shown(uri)}: sha256 applies only to archives, but the URI names a directory.", hint="Remove sha256."
            )
        yield Source("", lambda: local)
        return
    with fetch(uri, downloads, sha256=sha256, max_bytes=max_bytes, progress=progress) as archive, ExitStack() as stack:

        def extracted() -> Path:
            path = archive.path()
            downloads.mkdir(parents=True, exist_ok=True)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="extracted-", dir=downloads)))
            extract(path, folder, max_bytes=max_bytes, named=shown(uri))
            return folder

        yield Source(archive.sha256, extracted)


def extract(archive: Path, folder: Path, *, max_bytes: int, named: str = "") -> None:
    """Extract an archive's regular files into an existing, empty folder; refuse an unsafe archive."""
    named = named or str(archive)
    try:
        if zipfile.is_zipfile(archive):
            _extract(_zip_members(archive), folder, max_bytes, named)
        elif _is_tar(archive):
            _extract(_tar_members(archive), folder, max_bytes, named)
        else:
            raise InputError(
                f"{named} is neither a directory nor a .zip, .tar, .tar.gz, .tar.bz2 or .tar.xz archive.",
                hint="Repack the data in one of these formats.",
            )
    except _DAMAGED as error:
        raise InputError(
            f"The archive {named} is damaged or has an unknown format ({error}).",
            hint="Download the archive again, or repack it.",
        ) from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise InputError(
            f"The archive {named} contains two members with the name {Path(error.filename).name}.",
            hint="Repack the archive so that each member has a unique name.",
        ) from error
    except OSError as error:
        if not isinstance(error.filename, str) or str(folder) not in error.filename:
            raise InputError(
                f"The archive {named} cannot be read: {error.strerror or error}.",
                hint="Check the archive and its permissions.",
            ) from error
        raise StoreError(
            f"Cannot write to the folder {folder}: {error.strerror or error}.",
            hint="Free some disk space, or fix the folder's permissions.",
        ) from error


class _BoundedHeader(tarfile.TarInfo):
    """Tar header that refuses long extension headers (pax, long names), which tarfile would read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENSIONS and header.size > _LONGEST_HEADER:
            raise ValueError(f"a header is {header.size} bytes long, but the limit is {_LONGEST_HEADER} bytes")
        return header


def _is_tar(archive: Path) -> bool:
    # Do not call `tarfile.is_tarfile`, because it reads a header of any size into memory.
    try:
        with tarfile.open(archive, "r:*", tarinfo=_BoundedHeader):
            return True
    except tarfile.TarError:
        return False


def _zip_members(archive: Path) -> _Members:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            # The upper 16 bits of `external_attr` are the Unix mode, or 0 in archives from other systems.
            kind = stat.S_IFMT(member.external_attr >> 16)
            if not member.filename:  # zipfile truncates names at NUL, and cannot open a member with an empty name
                yield member.filename, why_unsafe(member.filename), None
            elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                yield member.filename, "it is a link or a device", None
            elif member.flag_bits & 0x1:
                yield member.filename, "it is encrypted", None
            else:
                with nullcontext() if member.is_dir() else members.open(member) as content:
                    yield member.filename, "", content


def _tar_members(archive: Path) -> _Members:
    with tarfile.open(archive, "r:*", tarinfo=_BoundedHeader) as members:
        for member in members:
            if member.isreg() or member.isdir():
                yield member.name, "", members.extractfile(member)
            else:
                yield member.name, "it is a link or a device", None
            # Clear the list of members, because tarfile would otherwise keep all members in memory.
            members.members = []  # type: ignore[attr-defined]


def _extract(members: _Members, folder: Path, max_bytes: int, named: str) -> None:
    left = max_bytes
    for number, (name, problem, content) in enumerate(members, 1):
        path = PurePosixPath(name)
        if number > MAX_MEMBERS:
            problem = f"there are more than {MAX_MEMBERS} members"
        elif path.parts or content is not None:  # ``"./"`` is the target folder itself
            problem = problem or why_unsafe(name)
        if problem:
            raise InputError(
                f"The archive {named} was rejected because of the member {name!r}: {problem}.",
                hint="If you trust the archive's source, repack the archive with only regular, unencrypted files and "
                "folders.",
            )
        target = folder / path
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            while piece := content.read(_PIECE):
                left -= len(piece)
                if left < 0:
                    raise InputError(
                        f"The archive {named} contains more than {max_bytes} bytes.",
                        hint="If you expect an archive this large, raise max_bytes.",
                    )
                file.write(piece)
