"""``SHA256SUMS``: what a bundle's folder holds, byte for byte; also what ``sha256sum -c`` reads.

A bundle is flat: regular files with plain names in one folder. That leaves no path to escape by, and anything else
(a link, a folder, a device, a file that is not listed) is a reason to refuse it before a byte of it is used.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

from storage.digest import file_digest
from storage.errors import BundleError

SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LINE = re.compile(rf"([0-9a-f]{{64}})  ({_NAME.pattern})")
_LONGEST = 1 << 20


def write_sums(folder: Path) -> str:
    """Write ``SHA256SUMS`` over every file of a flat folder, sorted by name; give the digest of `SUMS` itself.

    Raises
    ------
    BundleError
        The folder holds something that a bundle may not hold.
    """
    names = sorted(_regular_files(folder) - {SUMS, SIGNATURE})
    text = "".join(f"{file_digest(folder / name)}  {name}\n" for name in names)
    (folder / SUMS).write_text(text, encoding="ascii")
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def check_sums(folder: Path) -> str:
    """Hold a folder against its ``SHA256SUMS``; give the digest of `SUMS`, which names the bundle's content.

    Nothing but regular files is opened, and no file is interpreted.

    Raises
    ------
    BundleError
        A file is missing, changed, not listed, or no regular file; or the list is not as :func:`write_sums` writes it.
        The message names every file that is wrong.
    """
    present = _regular_files(folder)
    if SUMS not in present:
        raise BundleError(f"{folder}: there is no {SUMS}, so this is no bundle.", hint="Fetch the bundle again, whole.")
    if (folder / SUMS).stat().st_size > _LONGEST:
        raise BundleError(f"{folder}: {SUMS} is longer than any that nightquant writes.")
    content = (folder / SUMS).read_bytes()
    listed = _parse(folder, content)
    problems = [f"{name} is missing" for name in sorted(listed.keys() - present)]
    problems += [f"{name} is not listed in {SUMS}" for name in sorted(present - listed.keys() - {SUMS, SIGNATURE})]
    problems += [
        f"{name} was changed" for name in sorted(listed.keys() & present) if file_digest(folder / name) != listed[name]
    ]
    if problems:
        raise BundleError(f"{folder}: {'; '.join(problems)}.", hint="Do not use it; fetch the bundle again.")
    return hashlib.sha256(content).hexdigest()


def _parse(folder: Path, content: bytes) -> dict[str, str]:
    lines = content.decode("latin-1").split("\n")
    matches = [_LINE.fullmatch(line) for line in lines[:-1]]
    if lines[-1] or not matches or None in matches:
        raise BundleError(f"{folder}: {SUMS} is damaged: it is no list of digests and names.")
    pairs = [(match[2], match[1]) for match in matches if match is not None]
    names = [name for name, _ in pairs]
    # One spelling for one content: a list in another order, or with a name twice, was not written by nightquant.
    if names != sorted(set(names)) or {SUMS, SIGNATURE} & set(names):
        raise BundleError(f"{folder}: {SUMS} is damaged: its names are not sorted and unique.")
    return dict(pairs)


def _regular_files(folder: Path) -> set[str]:
    """Names in a flat folder of plain files; refuses links, folders and special files without opening them."""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise BundleError(f"{folder}: not a folder.", hint="Give the bundle's own folder, not a link to it.")
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise BundleError(f"{folder}: cannot be read: {error.strerror or error}.") from error
    for entry in entries:
        if not entry.is_file(follow_symlinks=False) or not _NAME.fullmatch(entry.name):
            raise BundleError(
                f"{folder}: {entry.name!r} is no regular file with a plain name; a bundle holds nothing else.",
                hint="Do not use it; fetch the bundle again.",
            )
    return {entry.name for entry in entries}
