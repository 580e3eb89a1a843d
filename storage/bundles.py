"""Switch a workload's current bundle, and sign bundles; ``current.json`` is replaced atomically."""

from __future__ import annotations

from datetime import UTC, datetime

from storage.bundle_folders import BundleFolders
from storage.errors import BundleError, ConfigurationError, ConflictError
from storage.pointer import Action, Pointer, Switch, location_of
from storage.seal import SIGNATURE, SUMS, Signer, signed_sums


class BundleStore(BundleFolders):
    """The bundles of a store, with the pointers to the current bundles."""

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
