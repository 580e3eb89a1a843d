"""What artifacts a store holds, as their manifests say, and what refers to them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from storage.mirror import MANIFEST
from storage.root import Entry, StoreRoot

_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_ARTIFACT = re.compile(r"(artifacts/[^/]+/[0-9a-f]{2}/[0-9a-f]{64})/.")
# Only names that nightquant gives: whoever takes a folder of their own for a store shall lose nothing in it.
_TEMPORARY = re.compile(r"artifacts/\.tmp/([0-9a-f]{12}-)?[0-9a-f]{32}/.|results/.*/\.[^/]*-[0-9a-f]{32}\.tmp$")
_UNFINISHED = re.compile(
    r"work/[0-9a-f]{64}(/.|\.lock$)|downloads/([0-9a-f]{64}(\.part|\.lock)?$|extracted-[a-z0-9_]{8}/.)"
)


@dataclass(frozen=True)
class Artifact:
    """An artifact's folder; ``manifest`` is None where it cannot be read, ``modified`` is its newest file's time."""

    kind: str
    digest: str
    location: str
    files: tuple[Entry, ...]
    manifest: dict[str, Any] | None

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.size for entry in self.files)

    @property
    def modified(self) -> float:
        """Seconds since 1970."""
        return max(entry.modified for entry in self.files)


def artifacts_in(root: StoreRoot) -> list[Artifact]:
    """Every artifact's folder with its files and manifest; what does not lie where artifacts do is left out."""
    folders: dict[str, list[Entry]] = {}
    for entry in root.list("artifacts"):
        if place := _ARTIFACT.match(entry.name):
            folders.setdefault(place[1], []).append(entry)
    return [_artifact(root, location, files) for location, files in folders.items()]


def _artifact(root: StoreRoot, location: str, files: list[Entry]) -> Artifact:
    _, kind, _, digest = location.split("/")
    manifest = None
    if any(entry.name == f"{location}/{MANIFEST}" for entry in files):
        try:
            read = json.loads(root.read(f"{location}/{MANIFEST}"))
            manifest = read if isinstance(read, dict) and isinstance(read.get("files"), dict) else None
        except ValueError:
            manifest = None  # said by `store check`, which looks at the manifest for its own sake
    return Artifact(kind, digest, location, tuple(files), manifest)


def digests_in(text: str) -> frozenset[str]:
    """Every SHA-256 in hexadecimal digits in a text."""
    return frozenset(_DIGEST.findall(text))


def bundle_digests(root: StoreRoot) -> frozenset[str]:
    """Every digest that a bundle or its pointers mention."""
    found: set[str] = set()
    for entry in root.list("handoff"):
        if entry.name.endswith(".json"):
            found |= digests_in(root.read(entry.name).decode("utf-8", "replace"))
    return frozenset(found)


# Half a download and a training's last epoch: a killed night's successor goes on from them, later ones hardly.
_UNFINISHED_S = 30 * 24 * 3600.0


def leftovers(root: StoreRoot, before: float) -> list[Entry]:
    """Files of writers that were killed: temporary ones unchanged since `before` (seconds since 1970).

    Unfinished downloads and trainings, from which a later run can go on, are left over after a month more.
    """
    found = []
    for folder, pattern, oldest in (
        ("artifacts/.tmp", _TEMPORARY, before),
        ("results", _TEMPORARY, before),
        ("work", _UNFINISHED, before - _UNFINISHED_S),
        ("downloads", _UNFINISHED, before - _UNFINISHED_S),
    ):
        found += [entry for entry in root.list(folder) if pattern.match(entry.name) and entry.modified < oldest]
    return found
