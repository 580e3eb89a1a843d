"""The content-addressed artifact store: ``<root>/artifacts/<kind>/<digest[:2]>/<digest>/``.

An artifact is an immutable folder that appears in one step, with every file listed in its ``artifact.json``.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypedDict

from storage.digest import digest_of, file_digest
from storage.errors import StoreError, unwritable
from storage.root import Entry, LocalRoot, StoreRoot, cache_folder

MANIFEST = "artifact.json"
_LOCATION = re.compile(r"(artifacts/[^/]+/[0-9a-f]{2}/[0-9a-f]{64})/.")


class _File(TypedDict):
    bytes: int
    sha256: str


class Manifest(TypedDict):
    """``artifact.json``; ``made_from`` is what the digest was computed from."""

    kind: str
    digest: str
    made_from: dict[str, object]
    files: dict[str, _File]


@dataclass(frozen=True)
class Artifact:
    """An artifact's folder; ``manifest`` is None if it cannot be read."""

    kind: str
    digest: str
    location: str
    files: tuple[Entry, ...]
    manifest: Manifest | None

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.size for entry in self.files)

    @property
    def modified(self) -> float:
        """When its newest file was written, in seconds since 1970."""
        return max(entry.modified for entry in self.files)


class ArtifactStore:
    """Artifacts under the root `place`; those of an object store are used from copies under the local `root`.

    Its methods raise `StoreError` if the store cannot be read or written, or an artifact is not what was published.
    """

    def __init__(self, place: StoreRoot | Path | str) -> None:
        self._store = StoreRoot.of(place)
        self.place = self._store.url
        self.root = self._store.local or cache_folder(self.place)
        self._copies = LocalRoot(self.root)

    def find(self, kind: str, digest: str) -> Path | None:
        """The artifact's folder, or None if it does not exist; from an object store it is fetched on first use."""
        location = _location(kind, digest)
        if not self._store.exists(f"{location}/{MANIFEST}"):
            return None
        if self._store.local is None:
            self._fetch(location)
        return self.root / location

    def path(self, kind: str, digest: str) -> Path:
        """The folder of an artifact that must exist."""
        found = self.find(kind, digest)
        if found is None:
            raise StoreError(
                f"The store {self.place} has no {kind} artifact {digest[:12]}.",
                hint="It was removed after it was made: run the night again.",
            )
        return found

    @contextmanager
    def create(self, kind: str, digest: str, made_from: Mapping[str, object]) -> Iterator[Path]:
        """Yield an empty folder to fill; publish it when the block ends without an error.

        If another process has published the same artifact meanwhile, its copy stays: equal digests mean equal content.
        """
        location = _location(kind, digest)
        try:
            with self._draft(digest) as work:
                yield work
                files: dict[str, _File] = {
                    str(path.relative_to(work)): {"bytes": path.stat().st_size, "sha256": file_digest(path)}
                    for path in sorted(work.rglob("*"))
                    if path.is_file()
                }
                manifest: Manifest = {"kind": kind, "digest": digest, "made_from": dict(made_from), "files": files}
                (work / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
                self._copies.publish(work, location, MANIFEST)
                if self._store.local is None:
                    self._store.publish(self.root / location, location, MANIFEST)
        except OSError as error:
            # A full disk and lost permissions surface here, whichever write they hit.
            if error.filename is None or str(self.root) in str(error.filename):
                raise unwritable(self.root, error) from error
            raise

    def work_folder(self, digest: str) -> Path:
        """Create a folder from which unfinished work continues after a kill; remove it once the work is done."""
        folder = self.root / "work" / digest
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.root, error) from error
        return folder

    @contextmanager
    def _draft(self, digest: str) -> Iterator[Path]:
        work = self.root / "artifacts" / ".tmp" / f"{digest[:12]}-{uuid.uuid4().hex}"
        try:
            work.mkdir(parents=True)
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _fetch(self, location: str) -> None:
        if (self.root / location / MANIFEST).is_file():
            return
        with self._draft(PurePosixPath(location).name) as work:
            content = self._store.read(f"{location}/{MANIFEST}")
            manifest: Manifest = json.loads(content)
            for name, facts in manifest["files"].items():
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise self._damaged(location, f"its manifest names {name!r}, which is outside its folder")
                target = work / name
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    self._store.download(f"{location}/{name}", target)
                except FileNotFoundError as error:
                    raise self._damaged(location, f"{name} is missing") from error
                if file_digest(target) != facts["sha256"]:
                    raise self._damaged(location, f"{name} is not what was published")
            (work / MANIFEST).write_bytes(content)
            self._copies.publish(work, location, MANIFEST)

    def _damaged(self, location: str, what: str) -> StoreError:
        return StoreError(
            f"The artifact {self._store.uri(location)} is damaged: {what}.",
            hint="Remove it (nightquant store check lists all of them) and run the night again, which makes it again.",
        )


def artifact_digest(kind: str, made_from: Mapping[str, object]) -> str:
    """Name an artifact by everything that decides its content."""
    return digest_of({"kind": kind, "made_from": dict(made_from)})


def artifacts_in(root: StoreRoot) -> list[Artifact]:
    """List every artifact with its files and manifest; files that are not where artifacts belong are left out."""
    folders: dict[str, list[Entry]] = {}
    for entry in root.list("artifacts"):
        if place := _LOCATION.match(entry.name):
            folders.setdefault(place[1], []).append(entry)
    artifacts = []
    for location, files in folders.items():
        _, kind, _, digest = location.split("/")
        artifacts.append(Artifact(kind, digest, location, tuple(files), _manifest(root, location)))
    return artifacts


def _manifest(root: StoreRoot, location: str) -> Manifest | None:
    try:
        manifest: Manifest = json.loads(root.read(f"{location}/{MANIFEST}"))
        return manifest if isinstance(manifest["files"], dict) else None
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _location(kind: str, digest: str) -> str:
    return f"artifacts/{kind}/{digest[:2]}/{digest}"
