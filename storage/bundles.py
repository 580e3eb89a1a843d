"""Bundles under ``<root>/handoff/``: immutable folders, and a mutable ``current.json`` for each workload.

A bundle is published atomically. ``current.json`` is replaced atomically, after the new bundle has been published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from storage import copies
from storage.errors import BundleError, ConfigurationError
from storage.pointer import WORKLOAD, Action, Pointer, Switch, location_of, signed, switched
from storage.pointers import Pointers, conflict, how_to_sign
from storage.root import StoreRoot
from storage.seal import SIGNATURE, SUMS, check_sums, parse_sums, signed_sums
from storage.trust import VERSION, Signer, Statement


@dataclass(frozen=True)
class BundleEntry:
    """A published bundle: its workload and version, and whether the bundle is current or withdrawn."""

    workload: str
    version: str
    is_current: bool
    is_withdrawn: bool

    @property
    def location(self) -> str:
        """The bundle's folder, relative to the store's root."""
        return f"handoff/{self.workload}/{self.version}"


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

    def draft(self) -> AbstractContextManager[Path]:
        """Yield an empty folder for a new bundle; after the block, remove the folder unless it was published."""
        return copies.draft(self.root)

    def opened(self, location: str) -> AbstractContextManager[Path]:
        """Yield a bundle's folder without checking the files; for an object store, yield a temporary copy."""
        return copies.downloaded(self.root, location)

    def publish(self, draft: Path, workload: str, version: str) -> bool:
        """Publish a sealed draft as a bundle; if the version already exists, publish nothing and return False."""
        location = location_of(workload, version)
        check_sums(draft)
        for path in draft.iterdir():
            path.chmod(0o444)
        return self.root.publish(draft, location, SUMS)

    def promote(self, workload: str, version: str, *, by: str, reason: str, replacing: str | None) -> Pointer:
        """Switch to the bundle that a run chose.

        If the bundle is already current or has been withdrawn, renew only the pointer's signature.

        Parameters
        ----------
        replacing
            Version that was current when the run made its choice; None if no bundle was current.

        Raises
        ------
        ConflictError
            Neither `replacing` nor `version` is current.
        """
        return self._switch("promote", workload, version, by=by, reason=reason, replacing=replacing)

    def renew(self, workload: str, version: str | None = None) -> None:
        """Renew the signature on the pointer to the current bundle; an expired signature cannot be renewed.

        Raise `ConflictError` if a bundle other than `version` has become current. If `version` is None, any bundle may
        be current.
        """
        if self.signer is None:
            return

        def decide(pointer: Pointer | None) -> Pointer | None:
            if version is not None and (pointer is None or pointer.version != version):
                raise conflict(workload, pointer, version)
            return pointer and self._signed(pointer, self.pointers.renewable(pointer))

        self.pointers.change(workload, decide)

    def sign(self, workload: str, version: str, sha256sums: str) -> Pointer | None:
        """Sign a bundle's file list, even if it is already signed; if the bundle is current, also sign the pointer.

        `sha256sums` is the digest of the file list that a person reviewed. Return None if the bundle is not current.
        """
        signer, name = self.pointers.require_signer(), f"{location_of(workload, version)}/{SUMS}"
        content = self.root.read(name)
        if hashlib.sha256(content).hexdigest() != sha256sums:
            raise BundleError(
                f"The file {self.root.uri(name)} changed while the bundle was being verified.",
                hint="Do not use the bundle until you have inspected and verified it again.",
            )
        self.root.put(f"{location_of(workload, version)}/{SIGNATURE}", signer.keys[0].sign(content))

        def decide(pointer: Pointer | None) -> Pointer | None:
            if pointer is None or pointer.version != version:
                return None
            before = self.pointers.last(pointer, workload, by_hand=True)
            return self._signed(pointer.model_copy(update={"sha256sums": sha256sums}), before)

        return self.pointers.change(workload, decide)

    def promote_by_hand(self, workload: str, version: str, *, by: str, reason: str) -> Pointer:
        """Switch to `version`, even if it is withdrawn.

        Raise `ConflictError` if another bundle becomes current first.
        """
        pointer = self.pointer(workload)
        self.require(workload, version)
        replacing = pointer.version if pointer else None
        return self._switch("promote-by-hand", workload, version, by=by, reason=reason, replacing=replacing)

    def roll_back(
        self, workload: str, version: str | None = None, *, by: str, reason: str, replacing: str | None = None
    ) -> Pointer:
        """Switch to an earlier bundle, by default the previous bundle, and withdraw the current bundle.

        Parameters
        ----------
        replacing
            Version to withdraw; by default, the current version.

        Raises
        ------
        ConflictError
            A bundle other than `replacing` is current.
        """
        if replacing is None and (pointer := self.pointer(workload)):
            replacing = pointer.version
        self.require(workload, version)
        return self._switch("rollback", workload, version, by=by, reason=reason, replacing=replacing)

    def local_folder(self, workload: str, version: str) -> Path:
        """Return the bundle's folder on this host; for an object store, return a complete copy that never changes."""
        location = location_of(workload, self.require(workload, version))
        if self.root.local is not None:
            return self.root.local / location
        with self.opened(location) as copy:
            self._check(location, copy)
            return copies.keep_copy(self.root, copy, f"{workload}/{version}")

    def digests(self, workload: str, version: str) -> dict[str, str]:
        """Return the SHA-256 of each of a bundle's files, keyed by name, as the bundle's file list states them."""
        location = location_of(workload, version)
        return parse_sums(self.root.uri(location), self.root.read(f"{location}/{SUMS}"))

    def _switch(
        self, action: Action, workload: str, version: str | None, *, by: str, reason: str, replacing: str | None
    ) -> Pointer:
        def decide(pointer: Pointer | None) -> Pointer:
            before = self.pointers.last(pointer, workload, by_hand=action != "promote")
            current = pointer.version if pointer else None
            # If another process has made `version` current, a rollback must still withdraw `replacing`.
            is_done = version == current and (action != "rollback" or current == replacing)
            if not is_done and current != replacing:
                raise conflict(workload, pointer, replacing)
            target = version or (pointer.previous() if pointer else None)
            if target is None:
                raise ConfigurationError(
                    f'The workload "{workload}" does not have an earlier bundle to roll back to.',
                    hint="Choose a version with --to.",
                )
            if pointer is not None and (is_done or (action == "promote" and target in pointer.withdrawn)):
                return self._signed(pointer, before)
            # Check the files, so that a damaged bundle never becomes current.
            location = location_of(workload, self.require(workload, target))
            with self.opened(location) as folder:
                sums = self._check(location, folder)
            now = datetime.now(UTC).replace(microsecond=0)
            switch = Switch(action=action, version=target, sha256sums=sums, at=now, by=by, reason=reason)
            return self._signed(switched(pointer, workload, switch), before)

        return self.pointers.change(workload, decide)

    def _check(self, location: str, folder: Path) -> str:
        """Check a bundle, or its copy in `folder`, and return the digest of the file list."""
        try:
            return check_sums(folder)
        except BundleError as error:
            message = error.message.replace(str(folder), self.root.uri(location))
            raise BundleError(message, hint=error.hint) from error.__cause__

    def is_signed(self, workload: str, version: str) -> bool:
        """Return whether the signer signed the bundle's file list; return True if there is no signer."""
        try:
            return self.signer is None or bool(self._signed_sums(self.signer, workload, version))
        except BundleError:
            return False

    def _signed_sums(self, signer: Signer, workload: str, version: str) -> str:
        bundle = location_of(workload, version)
        uri, hint = self.root.uri(bundle), how_to_sign(workload, version)
        try:
            content, signature = self.root.read(f"{bundle}/{SUMS}"), self.root.read(f"{bundle}/{SIGNATURE}")
            return signed_sums(uri, content, signature, signer.public)
        except FileNotFoundError as error:
            raise BundleError(f"{uri} is not signed.", hint=hint) from error
        except BundleError as error:
            raise BundleError(error.message, hint=hint) from error

    def _signed(self, pointer: Pointer, before: Statement | None) -> Pointer:
        """Check the bundle's signature and sign the pointer; if there is no signer, return the pointer unchanged."""
        if self.signer is None:
            return pointer
        workload, version = pointer.workload, pointer.version
        if self._signed_sums(self.signer, workload, version) != pointer.sha256sums:
            uri = self.root.uri(location_of(workload, version))
            raise BundleError(
                f"The bundle {uri} has changed since it was checked.",
                hint="Do not use the bundle; restore it from a backup.",
            )
        return signed(pointer, self.signer, before, datetime.now(UTC).replace(microsecond=0))

    def _bundles(self, prefix: str) -> Iterator[tuple[str, str]]:
        for entry in self.root.list(prefix):
            parts = entry.name.split("/")
            if len(parts) == 4 and parts[3] == SUMS and WORKLOAD.fullmatch(parts[1]) and VERSION.fullmatch(parts[2]):
                yield parts[1], parts[2]
