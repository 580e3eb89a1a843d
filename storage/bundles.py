"""Bundles under ``<root>/handoff/``: immutable folders, and a mutable ``current.json`` for each workload.

A bundle is published atomically. ``current.json`` is replaced atomically, after the new bundle has been published.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from storage.errors import BundleError, ConfigurationError, ConflictError, writing
from storage.local_root import LocalRoot
from storage.pointer import VERSION, WORKLOAD, Action, Pointer, Pointers, Switch, location_of
from storage.root import StoreRoot, cache_folder
from storage.seal import SIGNATURE, SUMS, Signer, check_name, check_sums, parse_sums, signed_sums


@dataclass(frozen=True)
class BundleEntry:
    """A published bundle: its workload and version, and whether the bundle is current or withdrawn."""

    workload: str
    version: str
    is_current: bool
    is_withdrawn: bool


class BundleStore:
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
        # Publishing a draft of a local store is only a rename.
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

    def promote(self, workload: str, version: str, *, by: str, reason: str, replacing: str | None) -> Pointer:
        """Switch from `replacing` to the bundle that a run chose, or raise `ConflictError` if another is current.

        If the bundle is already current or has been withdrawn, renew only the pointer's signature.
        """
        return self._switch("promote", workload, version, by=by, reason=reason, replacing=replacing)

    def renew(self, workload: str, version: str | None = None) -> None:
        """Renew the signature on the pointer to the current bundle, which must be `version` unless it is None."""
        if self.signer is None:
            return

        def decide(pointer: Pointer | None) -> Pointer | None:
            if version is not None and (pointer is None or pointer.version != version):
                raise _conflict(workload, pointer, version)
            self.pointers.check(pointer, workload, must_be_signed=pointer is not None)
            return pointer and self._signed(pointer)

        self.pointers.change(workload, decide)

    def sign(self, workload: str, version: str, sha256sums: str) -> Pointer | None:
        """Sign a bundle whose file list a person reviewed; if the bundle is current, also sign the pointer."""
        signer, location = self.pointers.require_signer(), location_of(workload, version)
        with self.opened(location) as folder:
            signature = signer.sign_bundle(folder)
            sums = (folder / SUMS).read_bytes()
        # Check what was signed, because other users may have changed the bundle since it was reviewed.
        if signed_sums(self.root.uri(location), sums, signature, signer.key.public_key()) != sha256sums:
            raise _changed(self.root.uri(location))
        self.root.put(f"{location}/{SIGNATURE}", signature)

        def decide(pointer: Pointer | None) -> Pointer | None:
            if pointer is None or pointer.version != version:
                return None
            return self._signed(pointer.model_copy(update={"sha256sums": sha256sums}))

        return self.pointers.change(workload, decide)

    def promote_by_hand(self, workload: str, version: str, *, by: str, reason: str) -> Pointer:
        """Switch to `version`, even if it is withdrawn."""
        pointer = self.pointer(workload)
        self.require(workload, version)
        replacing = pointer.version if pointer else None
        return self._switch("promote-by-hand", workload, version, by=by, reason=reason, replacing=replacing)

    def roll_back(
        self, workload: str, version: str | None = None, *, by: str, reason: str, replacing: str | None = None
    ) -> Pointer:
        """Switch to `version`, by default the previous one, and withdraw `replacing`, by default the current one."""
        if replacing is None and (pointer := self.pointer(workload)):
            replacing = pointer.version
        self.require(workload, version)
        return self._switch("rollback", workload, version, by=by, reason=reason, replacing=replacing)

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

    def _switch(
        self, action: Action, workload: str, version: str | None, *, by: str, reason: str, replacing: str | None
    ) -> Pointer:
        def decide(pointer: Pointer | None) -> Pointer:
            if action == "promote":
                self.pointers.check(pointer, workload)
            elif pointer is not None and pointer.signature is not None:
                self.pointers.require_signer()
            current = pointer.version if pointer else None
            # If another process has made `version` current, a rollback must still withdraw `replacing`.
            is_done = version == current and (action != "rollback" or current == replacing)
            if not is_done and current != replacing:
                raise _conflict(workload, pointer, replacing)
            target = version or (pointer.previous() if pointer else None)
            if target is None:
                raise ConfigurationError(
                    f'The workload "{workload}" does not have an earlier bundle to roll back to.',
                    hint="Choose a version with --to.",
                )
            if pointer is not None and (is_done or (action == "promote" and target in pointer.withdrawn)):
                return self._signed(pointer)
            # Check the files, so that a damaged bundle never becomes current.
            location = location_of(workload, self.require(workload, target))
            with self.opened(location) as folder:
                sums = self._check(location, folder)
            now = datetime.now(UTC).replace(microsecond=0)
            switch = Switch(action=action, version=target, sha256sums=sums, at=now, by=by, reason=reason)
            first = Pointer(workload=workload, version=target, sha256sums=sums, history=(switch,))
            return self._signed(pointer.switched(switch) if pointer else first)

        return self.pointers.change(workload, decide)

    def _check(self, location: str, folder: Path) -> str:
        """Check a bundle, or its copy in `folder`, and return the digest of the file list."""
        try:
            return check_sums(folder)
        except BundleError as error:
            message = error.message.replace(str(folder), self.root.uri(location))
            raise BundleError(message, hint=error.hint) from error.__cause__

    def is_signed(self, workload: str, version: str) -> bool:
        """Return whether the signer signed the bundle; return True if there is no signer."""
        try:
            return self.signer is None or bool(self._signed_sums(self.signer, workload, version))
        except BundleError:
            return False

    def _signed_sums(self, signer: Signer, workload: str, version: str) -> str:
        location = location_of(workload, version)
        name = f"{location}/{SIGNATURE}"
        signature = self.root.read(name) if self.root.exists(name) else b""
        sums = self.root.read(f"{location}/{SUMS}")
        return signed_sums(self.root.uri(location), sums, signature, signer.key.public_key())

    def _signed(self, pointer: Pointer) -> Pointer:
        """Check the bundle's signature and sign the pointer; if there is no signer, return the pointer unchanged."""
        if self.signer is None:
            return pointer
        if self._signed_sums(self.signer, pointer.workload, pointer.version) != pointer.sha256sums:
            raise _changed(self.root.uri(location_of(pointer.workload, pointer.version)))
        return pointer.signed(self.signer)

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


def _changed(uri: str) -> BundleError:
    return BundleError(
        f"The bundle {uri} has changed since it was checked.",
        hint="Do not use the bundle; restore it from a backup.",
    )


def _conflict(workload: str, pointer: Pointer | None, seen: str | None) -> ConflictError:
    """Return the error for a change that was requested while `seen` was current."""
    if pointer is None:
        now = f'The workload "{workload}" has no current bundle now'
    else:
        last = pointer.history[-1:]
        author = "".join(f" ({switch.action} by {switch.by}, {switch.at:%Y-%m-%d %H:%M} UTC)" for switch in last)
        now = f'The current bundle of "{workload}" is {pointer.version} now{author}'
    was = f"{seen} was current" if seen else "there was no current bundle"
    return ConflictError(
        f"{now}, but this change was requested while {was}. Nothing was changed.",
        hint=f"Check the history (nightquant handoff show {workload} --history). If the change is still needed, run "
        "the command again.",
    )
