"""Names of files that come from outside: which of them stay inside the folder that they are joined to."""

from __future__ import annotations

import unicodedata
from pathlib import PurePosixPath

_LONGEST_PART = 255  # bytes, of every file system in use
_LONGEST = 1024


def why_unsafe(name: str) -> str:
    """Why a relative name with forward slashes must not be joined to a folder; "" if it may be.

    A back slash counts as a separator, as it is one on other systems.
    """
    path = PurePosixPath(name)
    if not path.parts:
        return "it is empty"
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        return "it would land outside its folder"
    if "\0" in name or any(unicodedata.category(character) == "Cs" for character in name):
        return "it is no name of a file"
    if len(name.encode()) > _LONGEST or max(len(part.encode()) for part in path.parts) > _LONGEST_PART:
        return "it is too long"
    return ""


def check_relative(name: str) -> str:
    """Return a name that stays inside its folder; `ValueError` says why another does not."""
    if problem := why_unsafe(name):
        raise ValueError(f"the name {name[:80]!r} is refused: {problem}")
    return name
