"""What is installed beside this program: names, versions, licences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from urllib.parse import quote


@dataclass(frozen=True, order=True)
class Package:
    """A distribution; ``name`` is normalized, ``licence`` what it says of itself ("" where it says nothing).

    ``expression`` is whether that is an SPDX expression, as newer metadata have it, and not a phrase.
    """

    name: str
    version: str
    licence: str = ""
    expression: bool = False

    @property
    def purl(self) -> str:
        """Its package URL (github.com/package-url/purl-spec)."""
        return f"pkg:pypi/{self.name}@{quote(self.version, safe='.-_')}"


def installed_packages(path: Sequence[str] | None = None) -> tuple[Package, ...]:
    """Every distribution that Python would import from, sorted by name; of two of one name the one that is found first.

    Parameters
    ----------
    path
        Folders to look in; None: those of this process.
    """
    found: dict[str, Package] = {}
    for each in distributions() if path is None else distributions(path=list(path)):
        # A folder that an interrupted installation left has no name; importlib_metadata, which takes the place of the
        # standard library's finder once something imports it, raises there.
        if each.read_text("METADATA") is None and each.read_text("PKG-INFO") is None:
            continue
        if name := re.sub(r"[-_.]+", "-", _first(each, "Name")).lower():
            expression = _first(each, "License-Expression")
            found.setdefault(name, Package(name, each.version, expression or _phrase(each), bool(expression)))
    return tuple(sorted(found.values()))


def _phrase(distribution: Distribution) -> str:
    """The licence as classifiers name it, or the first line of its text."""
    classifiers = [line for line in distribution.metadata.get_all("Classifier") or () if line.startswith("License ::")]
    first = _first(distribution, "License").strip().partition("\n")[0]
    named = [line.rpartition(" :: ")[2] for line in classifiers]
    return ", ".join(named) or ("" if first == "UNKNOWN" else first[:100])


def _first(distribution: Distribution, field: str) -> str:
    return str(next(iter(distribution.metadata.get_all(field) or ()), ""))
