"""Write and check the ``SHA256SUMS`` file of a bundle, and check ``manifest.json`` against its schema.

A bundle is a folder of regular files with simple ASCII names, without subfolders. Links, subfolders, special files and
files with other names are refused without being opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, cast

from storage.digest import JsonObject, file_digest
from storage.errors import BundleError

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

SUMS, SIGNATURE, MANIFEST = "SHA256SUMS", "model.sig", "manifest.json"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LINE = re.compile(rf"([0-9a-f]{{64}})  ({_NAME.pattern})\n")
_LONGEST = 1 << 20


def write_sums(folder: Path) -> str:
    """Write ``SHA256SUMS`` for all files of a flat folder, sorted by name; return the digest of ``SHA256SUMS``."""
    names = sorted(_regular_files(folder) - {SUMS, SIGNATURE})
    content = _text({name: file_digest(folder / name) for name in names})
    (folder / SUMS).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def check_sums(folder: Path) -> str:
    """Check a folder against its ``SHA256SUMS``; return the digest of ``SHA256SUMS``, which identifies the bundle."""
    present = _regular_files(folder)
    if SUMS not in present:
        raise BundleError(
            f"{folder} is not a bundle, because {SUMS} is missing.", hint="Fetch the complete bundle again."
        )
    with (folder / SUMS).open("rb") as stream:
        content = stream.read(_LONGEST)
    listed = parse_sums(folder, content)
    actual = {name: file_digest(folder / name) for name in sorted(present - {SUMS, SIGNATURE})}
    problems = [f"{name} is missing" for name in sorted(listed.keys() - actual.keys())]
    problems += [f"{name} is not listed in {SUMS}" for name in sorted(actual.keys() - listed.keys())]
    problems += [f"{name} was changed" for name in actual if name in listed and actual[name] != listed[name]]
    if not problems and content != _text(actual):
        # nightquant sorts the names and lists each name once, so that a bundle has exactly one ``SHA256SUMS``.
        problems = [f"the lines of {SUMS} are unsorted or repeated"]
    if problems:
        raise BundleError(f"{folder}: {'; '.join(problems)}.", hint="Do not use the bundle; fetch it again.")
    return hashlib.sha256(content).hexdigest()


def check_name(folder: object, name: str) -> None:
    """Raise `BundleError` if a bundle cannot contain a file with this name."""
    if not _NAME.fullmatch(name):
        raise _odd(folder, name)


def parse_sums(folder: object, content: bytes) -> dict[str, str]:
    """Return the digests in `content`, the ``SHA256SUMS`` of the bundle in `folder`, keyed by file name."""
    matches = [_LINE.fullmatch(line) for line in content.decode("latin-1").splitlines(keepends=True)]
    if not matches or not all(matches):
        raise BundleError(
            f"{folder}: {SUMS} is not a list of digests and file names.", hint="Do not use the bundle; fetch it again."
        )
    return {match[2]: match[1] for match in matches if match}


def _text(digests: Mapping[str, str]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode("ascii")


def _regular_files(folder: Path) -> set[str]:
    """Return the names of a folder's files; refuse links, subfolders and special files without opening them."""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise BundleError(
                f"{folder} is a link or is not a folder.", hint="Pass the path of the bundle's folder itself."
            )
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise BundleError(f"{folder}: cannot be read: {error.strerror or error}.") from error
    for entry in entries:
        check_name(folder, entry.name)
        if not entry.is_file(follow_symlinks=False):
            raise _odd(folder, entry.name)
    return {entry.name for entry in entries}


def _odd(folder: object, name: str) -> BundleError:
    return BundleError(
        f"{folder}: {name!r} is not a regular file, or its name is not allowed in a bundle.",
        hint="Do not use the bundle; fetch it again.",
    )


def check_manifest(document: object) -> None:
    """Check a manifest against the schema."""
    problems = sorted(_validator().iter_errors(document), key=lambda problem: problem.json_path)
    if problems:
        shown = "; ".join(f"{problem.json_path}: {problem.message[:200]}" for problem in problems[:3])
        raise BundleError(f"{MANIFEST} does not conform to its schema: {shown}.", hint="Do not use the bundle.")


def listed(folder: Path, sha256sums: str) -> dict[str, str]:
    """Return the listed digests, keyed by file name; raise `BundleError` if the list's digest is not `sha256sums`."""
    content = _read(folder, SUMS)
    if hashlib.sha256(content).hexdigest() != sha256sums:
        raise changed(folder, SUMS)
    return parse_sums(folder, content)


def read_file(folder: Path, name: str, sha256sums: str) -> bytes:
    """Return the content of a file in a checked bundle; raise `BundleError` if the file or ``SHA256SUMS`` has changed.

    The digest is computed from the returned content, not from a second read of the file.
    """
    digests = listed(folder, sha256sums) | {SUMS: sha256sums}
    content = _read(folder, name)
    if digests.get(name) != hashlib.sha256(content).hexdigest():
        raise changed(folder, name)
    return content


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise BundleError(f"{folder}: {name} cannot be read: {error.strerror or error}.") from error


def read_manifest(folder: Path, sha256sums: str) -> JsonObject:
    """Read a bundle's manifest with `read_file`, and check it against the schema."""
    try:
        document: JsonObject = json.loads(read_file(folder, MANIFEST, sha256sums))
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{folder}: {MANIFEST} cannot be read: {error}.") from error
    check_manifest(document)
    return document


def changed(folder: Path, name: str) -> BundleError:
    """Return the error for a file that was replaced after the folder was checked."""
    return BundleError(
        f"{folder}: {name} changed while it was being read.", hint="Do not use the bundle; fetch it again."
    )


@cache
def _validator() -> Draft202012Validator:
    schema = json.loads(Path(__file__).with_name("manifest.schema.json").read_text("utf-8"))
    # Import jsonschema only on first use, because the import is slow and most commands only list bundles.
    return cast("Draft202012Validator", resolve_name("jsonschema:Draft202012Validator")(schema))
