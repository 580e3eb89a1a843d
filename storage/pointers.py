"""Read and replace ``current.json`` in a store, and decide whether a run may trust the file.

Other users may write to the store, so a run trusts only the latest statement that its own key signed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import ValidationError

from storage.errors import BundleError, ConfigurationError, ConflictError, StoreError
from storage.humanize import plural
from storage.pointer import Pointer, location_of
from storage.root import StoreRoot, check_writable
from storage.trust import VARIABLE, Signer, Statement, check_serial, check_statement, seen_in

# If many writers compete, one writer succeeds in each round.
_TRIES = 20
_PAUSE_S = 0.1
_Decided = TypeVar("_Decided", bound=Pointer | None)


class Pointers:
    """The ``current.json`` files of a store's workloads."""

    def __init__(self, root: StoreRoot, signer: Signer | None) -> None:
        self._root, self._signer = root, signer
        # This host's record of signatures. In a local store, the record is part of the store and of its backups.
        self._seen = root.lock_folder() / "signed.json"

    def read(self, workload: str) -> Pointer | None:
        """Read a workload's pointer; return None if the workload does not have a pointer."""
        name = _name(workload)
        try:
            return self._parsed(name, self._root.read(name))
        except FileNotFoundError:
            return None

    def change(self, workload: str, decide: Callable[[Pointer | None], _Decided]) -> _Decided:
        """Replace a pointer by compare-and-swap; return the result of `decide`.

        The lock prevents other processes on this host from signing a newer statement before the pointer is replaced.
        The compare-and-swap detects changes by other hosts.

        Parameters
        ----------
        decide
            Function that receives the current pointer (None if no pointer exists yet) and returns the pointer to write.
            To skip the write, the function returns the same pointer or None. If the change no longer applies, the
            function raises an error. The function is called again if the pointer changes before the new pointer is
            written.

        Raises
        ------
        ConflictError
            Other processes changed the pointer during every attempt.
        StoreError
            The store cannot be used, or does not support conditional writes.
        """
        name = _name(workload)
        with self._root.lock(f"handoff-{workload}"):
            if self._root.local is None:
                check_writable(self._root)
            before: Pointer | None = None
            after: _Decided | None = None
            for _ in range(_TRIES):
                stamped = self._root.stamped(name)
                current = self._parsed(name, stamped.content) if stamped else None
                if after is not None and _has_landed(before, after, current):
                    return self._remembered(after)
                before, after = current, decide(current)
                if after is None or after is current:
                    return after
                if self._root.swap(name, after.text().encode(), stamped.etag if stamped else None) is not None:
                    return self._remembered(after)
                time.sleep(random.uniform(0, _PAUSE_S))
        raise ConflictError(
            f"The file {self._root.uri(name)} changed during each of {_TRIES} attempts to replace it.",
            hint="Check which bundle is current. If your change is still needed, run the command again.",
        )

    def last(self, pointer: Pointer | None, workload: str, *, by_hand: bool = False) -> Statement | None:
        """Return this signer's last statement if the statement matches the pointer; return None if no statement exists
        yet.

        If a person made the decision (`by_hand`), return None instead of raising `BundleError`.

        Raises
        ------
        ConfigurationError
            The pointer is signed, but no signing key is set.
        BundleError
            The pointer was modified, was not signed by this signer, or is older than this host's last signed statement.
        """
        if self._signer is None:
            if pointer is not None and pointer.signed is not None:
                self.require_signer()
            return None
        try:
            if pointer is None or pointer.signed is None:
                if workload in seen_in(self._seen):
                    raise BundleError(
                        f"The current.json of {workload} was signed before, but is no longer signed. Do not trust "
                        "the file."
                    )
                return None
            before = pointer.statement(self._signer.public)
            pointer.check_says(before)
            check_serial(self._seen, before)
        except BundleError as error:
            if by_hand:
                return None
            raise BundleError(error.message, hint=how_to_sign(workload)) from error
        return before

    def renewable(self, pointer: Pointer) -> Statement:
        """Return this signer's last statement; raise `BundleError` if the statement is missing or has expired."""
        before = self.last(pointer, pointer.workload)
        if before is None:
            raise _unsigned(pointer.workload)
        check_statement(before, pointer.workload)
        return before

    def cosign(self, workload: str, trusted: Sequence[Ed25519PublicKey], sha256sums: str) -> Pointer:
        """Add this signer's signatures to the statement in a workload's pointer.

        A `trusted` key must have signed the statement, and the statement must contain the digest `sha256sums`.
        """
        signer = self.require_signer()

        def decide(pointer: Pointer | None) -> Pointer:
            if pointer is None or pointer.signed is None:
                raise _unsigned(workload)
            before = pointer.statement(trusted)
            pointer.check_says(before)
            check_statement(before, workload)
            check_serial(self._seen, before)
            if before.sha256sums != sha256sums:
                raise conflict(workload, pointer, "the bundle that was verified")
            return pointer.model_copy(update={"signed": pointer.signed.cosigned(signer)})

        return self.change(workload, decide)

    def require_signer(self) -> Signer:
        """Return the signer; raise `ConfigurationError` if no signing key is set."""
        if self._signer is None:
            raise ConfigurationError(
                f"No signing key is set, so nothing can be signed in the store {self._root.url}.",
                hint=f"Set {VARIABLE} to the private key or to the path of the key file.",
            )
        return self._signer

    def _remembered(self, pointer: _Decided) -> _Decided:
        if self._signer is not None and pointer is not None:
            check_serial(self._seen, pointer.statement(self._signer.public))
        return pointer

    def _parsed(self, name: str, content: bytes) -> Pointer:
        try:
            return Pointer.model_validate_json(content)
        except ValidationError as error:
            raise StoreError(
                f"The file {self._root.uri(name)} is damaged: it contains "
                f"{plural(error.error_count(), 'invalid value')}.",
                hint="Restore the file from a backup, or remove the file and promote a bundle again.",
            ) from error


def conflict(workload: str, pointer: Pointer | None, seen: str | None) -> ConflictError:
    """Return the error for a change that was requested while `seen` was current (None if no bundle was current)."""
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


def how_to_sign(workload: str, version: str = "") -> str:
    """Return the hint for a person who has reviewed a bundle and wants to sign it."""
    words = ["nightquant", "handoff", "sign", workload, version]
    return f"Check the changes in the bundle. If the changes are legitimate, run: {' '.join(words).rstrip()}"


def _unsigned(workload: str) -> BundleError:
    return BundleError(
        f"The current.json of {workload} is not signed yet.",
        hint=f"Inspect the bundle, then sign current.json: nightquant handoff sign {workload}",
    )


def _name(workload: str) -> str:
    return f"{location_of(workload)}/current.json"


def _has_landed(before: Pointer | None, after: Pointer, current: Pointer | None) -> bool:
    """Return whether `after` was written even though the response to the write was lost."""
    previous, history = (pointer.history if pointer else () for pointer in (before, after))
    return len(history) > len(previous) and current is not None and current.history[: len(history)] == history
