"""The folders of bundles under ``<root>/handoff/``, which never change, and copies of them on this host.

A bundle is published atomically.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.errors import BundleError, ConfigurationError, writing
from storage.local_root import LocalRoot
from storage.pointer import VERSION, WORKLOAD, Pointer, Pointers, location_of
from storage.root import StoreRoot, cache_folder
from storage.seal import SIGNATURE, SUMS, Signer, check_name, check_sums, parse_sums


@dataclass(frozen=True)
class BundleEntry:
    """A published bundle: its workload and version, and whether the bundle is current or withdrawn."""

    workload: str
    version: str
    is_current: bool
    is_withdrawn: bool


class BundleFolders:
    """The bundles of a store; unknown names raise `ConfigurationError`, and damaged bundles raise `BundleError`."""

    def __init__(self, place: StoreRoot | Path | str, signer: Signer | None = None) -> None:
        self.root = StoreRoot.of(place)
        self.signer = signer
        self.pointers = Pointers(self.root, signer)

    def workloads(self) -> list[str]:
        """Return the names of the workloads that have a bundle."""
        return sorted({workload for workload, _ in self._bundles("handoff")})

    def versions(self, workload: str) -> list[str]:
        """Return the versions of a workload's bundles, oldest night first (``[]`` for a workload without bundles)."""
        return sorted(version for _, version in self._bundles(location_of(workload)))

    def entries(self, workload: str | None = None) -> list[BundleEntry]:
        """List all bundles, or the bundles of one workload."""
        entries = []
        for name in self.workloads() if workload is None else [workload]:
            pointer = self.pointer(name)
            current, withdrawn = (pointer.version, pointer.withdrawn) if pointer else (None, ())
            entries += [
                BundleEntry(name, version, version == current, version in withdrawn) for version in self.versions(name)
            ]
        return entries

    def pointer(self, workload: str) -> Pointer | None:
        """Read the pointer to the workload's current bundle; return None if nothing has been promoted yet."""
        return self.pointers.read(workload)

    def require(self, workload: str, version: str | None = None) -> str:
        """Return `version`, or the current version by default; raise `ConfigurationError` if no such bundle exists."""
        versions = self.versions(workload)
        if not versions:
            raise ConfigurationError(
                f'The store {self.root.url} does not contain a bundle of the workload "{workload}".',
                hint=f"Workloads that have a bundle: {', '.join(self.workloads()) or 'none yet'}.",
            )
        if version is None:
            pointer = self.pointer(workload)
            if pointer is None:
                raise ConfigurationError(
                    f'The workload "{workload}" does not have a current bundle.',
                    hint=f"Choose a version: {', '.join(versions)}.",
                )
            version = pointer.version
        if version not in versions:
            raise ConfigurationError(
                f'The workload "{workload}" does not have the bundle {version}.',
                hint=f"Choose a version: {', '.join(versions)}.",
            )
        return version

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield an empty folder for a new bundle; after the block, remove the folder unless it was published."""
        # In a local store, drafts are published by a rename.
        drafts = self.root.local / "handoff" / ".tmp" if self.root.local else cache_folder(self.root.url) / "drafts"
        folder = drafts / uuid.uuid4().hex
        with writing(self.root.url, drafts):
            try:
                folder.mkdir(parents=True)
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def opened(self, location: str) -> Iterator[Path]:
        """Yield a bundle's folder without checking the files; for an object store, yield a temporary copy."""
        if self.root.local is not None:
            yield self.root.local / location
            return
        with self.draft() as copy:
            for entry in self.root.list(location):
                name = entry.name.removeprefix(f"{location}/")
                check_name(self.root.uri(location), name)
                self.root.download(entry.name, copy / name)
            yield copy

    def publish(self, draft: Path, workload: str, version: str) -> bool:
        """Publish a sealed draft as a bundle; if the version already exists, publish nothing and return False."""
        location = location_of(workload, version)
        check_sums(draft)
        for path in draft.iterdir():
            path.chmod(0o444)
        return self.root.publish(draft, location, SUMS)

    def local_folder(self, workload: str, version: str) -> Path:
        """Return the bundle's folder on this host; for an object store, return a complete copy that never changes.

        The bundle's content determines the folder of the copy, because other processes may be reading an older copy.
        """
        location = location_of(workload, self.require(workload, version))
        if self.root.local is not None:
            return self.root.local / location
        cache = cache_folder(self.root.url)
        with self.opened(location) as copy, writing(self.root.url, cache), self.root.lock("copies"):
            self._check(location, copy)
            content = _content_name(copy)
            folder = cache / "bundles" / content / workload / version
            if folder.exists() and not _is_good_copy(folder, content):
                folder.rename(copy.with_name(uuid.uuid4().hex))  # `store gc` removes the damaged copy
            LocalRoot(cache).publish(copy, folder.relative_to(cache).as_posix(), SUMS)
        return folder

    def digests(self, workload: str, version: str) -> dict[str, str]:
        """Return the SHA-256 of each of a bundle's files, keyed by name, as the bundle's file list states them."""
        location = location_of(workload, version)
        return parse_sums(self.root.uri(location), self.root.read(f"{location}/{SUMS}"))

    def _check(self, location: str, folder: Path) -> str:
        """Check a bundle, or its copy in `folder`, and return the digest of the file list."""
        try:
            return check_sums(folder)
        except BundleError as error:
            message = error.message.replace(str(folder), self.root.uri(location))
            raise BundleError(message, hint=error.hint) from error.__cause__

    def _bundles(self, prefix: str) -> Iterator[tuple[str, str]]:
        for entry in self.root.list(prefix):
            parts = entry.name.split("/")
            if len(parts) == 4 and parts[3] == SUMS and WORKLOAD.fullmatch(parts[1]) and VERSION.fullmatch(parts[2]):
                yield parts[1], parts[2]


def _content_name(folder: Path) -> str:
    """Return a name for a bundle's content: a digest of ``SHA256SUMS`` and the signature."""
    files = (folder / name for name in (SUMS, SIGNATURE))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files if file.is_file())).hexdigest()[:16]


def _is_good_copy(folder: Path, content: str) -> bool:
    try:
        check_sums(folder)
    except BundleError:
        return False
    return _content_name(folder) == content
