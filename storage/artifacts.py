"""The store of artifacts: immutable folders ``<root>/artifacts/<kind>/<digest[:2]>/<digest>/`` with a manifest."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    JsonValue,
    NonNegativeInt,
    StringConstraints,
    ValidationError,
)

from storage.digest import digest_of, file_digest
from storage.errors import StoreError, unwritable, writing
from storage.local_root import LocalRoot
from storage.root import Entry, StoreRoot, cache_folder, is_inside

MANIFEST = "artifact.json"
_KIND = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LOCATION = re.compile(rf"(artifacts/{_KIND.pattern}/[0-9a-f]{{2}}/{_DIGEST.pattern})/.")

_Sha256 = Annotated[str, StringConstraints(pattern=rf"^{_DIGEST.pattern}$")]


def _check_relative(name: str) -> str:
    if not is_inside(name):
        raise ValueError(f"the name {name[:80]!r} is not allowed")
    return name


class _File(BaseModel):
    model_config = ConfigDict(frozen=True)

    bytes: NonNegativeInt
    sha256: _Sha256


class Manifest(BaseModel):
    """Untrusted content of ``artifact.json``; ``digest`` is computed from ``kind`` and ``made_from``."""

    model_config = ConfigDict(frozen=True)

    kind: Annotated[str, StringConstraints(pattern=rf"^{_KIND.pattern}$")]
    digest: _Sha256
    made_from: dict[str, JsonValue]
    files: dict[Annotated[str, AfterValidator(_check_relative)], _File]


@dataclass(frozen=True)
class Artifact:
    """An artifact; ``manifest`` is None if ``artifact.json`` cannot be read."""

    kind: str
    digest: str
    location: str
    files: tuple[Entry, ...]
    manifest: Manifest | None

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(entry.size for entry in self.files)

    @property
    def modified(self) -> float:
        """Latest modification time of the files, in seconds since 1970."""
        return max(entry.modified for entry in self.files)


class ArtifactStore:
    """The artifacts in the store `place`; artifacts from an object store are copied to the local `root` folder."""

    def __init__(self, place: StoreRoot | Path | str) -> None:
        self._store = StoreRoot.of(place)
        self.place = self._store.url
        self.root = self._store.local or cache_folder(self.place)
        self._copies = LocalRoot(self.root)

    def find(self, kind: str, digest: str) -> Path | None:
        """Fetch, check and return an artifact's folder, or return None if the artifact does not exist."""
        location = _location(kind, digest)
        if not self._store.exists(f"{location}/{MANIFEST}"):
            return None
        if self._store.local is None and not (self.root / location / MANIFEST).is_file():
            self._fetch(location)
        self._check(location)
        return self.root / location

    def path(self, kind: str, digest: str) -> Path:
        """Return an artifact's folder; raise `StoreError` if it does not exist."""
        folder = self.find(kind, digest)
        if folder is None:
            raise StoreError(
                f"The store {self.place} has no {kind} artifact {digest[:12]}.",
                hint="Run nightquant nightly to build the artifact again.",
            )
        return folder

    def manifest_digest(self, kind: str, digest: str) -> str:
        """Return the SHA-256 of an artifact's ``artifact.json`` in the store, without fetching other files."""
        location = _location(kind, digest)
        try:
            return hashlib.sha256(self._store.read(f"{location}/{MANIFEST}")).hexdigest()
        except FileNotFoundError as error:
            raise self._damaged(location, f"{MANIFEST} is missing") from error

    def digests(self, kind: str, digest: str, *, only: str = "", without: str = "") -> dict[str, str]:
        """Check an artifact; return the SHA-256 of each file, keyed by name; `only` and `without` select files."""
        location, folder = _location(kind, digest), self.path(kind, digest)
        files = self._manifest(location, (folder / MANIFEST).read_bytes()).files
        return {name: facts.sha256 for name, facts in files.items() if name != without and only in ("", name)}

    def copy(self, kind: str, digest: str, target: Path, *, only: str = "", without: str = "") -> list[str]:
        """Copy an artifact's files, check the copies, and return their names; `only` and `without` select files."""
        location, folder = _location(kind, digest), self.path(kind, digest)
        digests = self.digests(kind, digest, only=only, without=without)
        for name, sha256 in digests.items():
            try:
                shutil.copyfile(folder / name, target / name)
            except OSError as error:
                raise unwritable(target, error) from error
            if file_digest(target / name) != sha256:
                raise self._damaged(location, f"{name} was changed")
        return list(digests)

    @contextmanager
    def create(self, kind: str, digest: str, made_from: Mapping[str, object]) -> Iterator[Path]:
        """Yield an empty folder to fill, then publish the folder unless another process has published the artifact."""
        location = _location(kind, digest)
        with writing(self.root, self.root), self._draft(digest) as work:
            yield work
            files = {
                path.relative_to(work).as_posix(): {"bytes": path.stat().st_size, "sha256": file_digest(path)}
                for path in sorted(work.rglob("*"))
                if path.is_file()
            }
            manifest = {"kind": kind, "digest": digest, "made_from": dict(made_from), "files": files}
            (work / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
            self._copies.publish(work, location, MANIFEST)
            if self._store.local is None:
                self._store.publish(self.root / location, location, MANIFEST)

    def work_folder(self, digest: str) -> Path:
        """Create a folder for resumable work; the caller must remove the folder when the work is done."""
        folder = self.root / "work" / digest
        with writing(self.root, self.root):
            folder.mkdir(parents=True, exist_ok=True)
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
        with self._draft(PurePosixPath(location).name) as work:
            content = self._store.read(f"{location}/{MANIFEST}")
            for name in self._manifest(location, content).files:
                target = work / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # the check below reports a missing file
                    self._store.download(f"{location}/{name}", target)
            (work / MANIFEST).write_bytes(content)
            self._check(location, work)
            self._copies.publish(work, location, MANIFEST)

    def _check(self, location: str, folder: Path | None = None) -> None:
        """Check the files of an artifact, or of its unpublished copy in `folder`, against the manifest."""
        folder = folder or self.root / location
        try:
            files = self._manifest(location, (folder / MANIFEST).read_bytes()).files
            present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
            if unlisted := sorted(present - {MANIFEST} - files.keys()):
                raise self._damaged(location, f"{unlisted[0]!r} is not in its manifest")
            for name, facts in files.items():
                status = (folder / name).stat()
                if _cached_digest(folder / name, status.st_ino, status.st_mtime_ns, status.st_size) != facts.sha256:
                    raise self._damaged(location, f"{name} was changed")
        except FileNotFoundError as error:
            raise self._damaged(location, f"{Path(error.filename).relative_to(folder)} is missing") from error
        except OSError as error:
            raise self._damaged(location, f"a file cannot be read: {error.strerror}") from error

    def _manifest(self, location: str, content: bytes) -> Manifest:
        try:
            manifest = Manifest.model_validate_json(content)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            raise self._damaged(location, f"in its {MANIFEST}, {problem['msg']}") from error
        if _location(manifest.kind, manifest.digest) != location:
            raise self._damaged(location, f"its {MANIFEST} belongs to another artifact")
        return manifest

    def _damaged(self, location: str, problem: str) -> StoreError:
        return StoreError(
            f"The artifact {self._store.uri(location)} is damaged: {problem}.",
            hint="Remove the artifact's folder, then run nightquant nightly to build the artifact again.",
        )


def artifact_digest(kind: str, made_from: Mapping[str, object]) -> str:
    """Return an artifact's digest, computed from all inputs that determine the artifact's content."""
    return digest_of({"kind": kind, "made_from": dict(made_from)})


def artifacts_in(root: StoreRoot) -> list[Artifact]:
    """List every artifact with its files and manifest; ignore files outside artifact folders."""
    folders: dict[str, list[Entry]] = {}
    for entry in root.list("artifacts"):
        if place := _LOCATION.match(entry.name):
            folders.setdefault(place[1], []).append(entry)
    artifacts = []
    for location, files in folders.items():
        _, kind, _, digest = location.split("/")
        manifest: Manifest | None = None
        with suppress(FileNotFoundError, ValidationError):
            manifest = Manifest.model_validate_json(root.read(f"{location}/{MANIFEST}"))
        artifacts.append(Artifact(kind, digest, location, tuple(files), manifest))
    return artifacts


@lru_cache(maxsize=4096)
def _cached_digest(path: Path, inode: int, modified_ns: int, size: int) -> str:
    """Return a file's SHA-256, cached until the file's inode, modification time or size changes."""
    return file_digest(path)


def _location(kind: str, digest: str) -> str:
    if not _KIND.fullmatch(kind) or not _DIGEST.fullmatch(digest):
        raise StoreError(
            f"The reference to the {kind[:80]!r} artifact {digest[:80]!r} is not valid.",
            hint="Run nightquant nightly to build the artifact again.",
        )
    return f"artifacts/{kind}/{digest[:2]}/{digest}"
