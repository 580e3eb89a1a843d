"""The store's side of ``current.json``: reading it, writing it signed, and what a night may take for its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import ValidationError

from storage.errors import BundleError, ConfigurationError, StoreError
from storage.freshness import check_serial, check_statement, seen_in
from storage.keys import VARIABLE, Signer
from storage.pointer import Pointer, Statement, cosigned, signed, statement_of
from storage.root import StoreRoot


class Pointers:
    """The ``current.json`` of each workload's folder in a store.

    What was signed once is only changed by who has a key. Others may write to the store, so that a night takes what it
    reads for its own only where it has its signature, and is no older than what this machine signed last.
    """

    def __init__(self, root: StoreRoot, signer: Signer | None) -> None:
        self._root, self._signer = root, signer
        # A copy of this machine's; in a local folder it is as old as the store, if that is restored from a copy.
        self._seen = root.lock_folder() / "signed.json"

    def read(self, location: str, workload: str) -> Pointer | None:
        """The pointer in a workload's folder; None if there is none."""
        name = f"{location}/current.json"
        try:
            return Pointer.model_validate_json(self._root.read(name))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise StoreError(
                f"{self._root.uri(name)} is damaged: {error.error_count()} of its values are wrong.",
                hint="Restore it from a copy, or remove it and promote again.",
            ) from error

    def write(self, location: str, pointer: Pointer, before: Statement | None) -> Pointer:
        """Write a pointer, in one step with its signed statement where there is a key."""
        if self._signer is not None:
            pointer = signed(pointer, self._signer, before, datetime.now(UTC).replace(microsecond=0))
        self._root.put(f"{location}/current.json", pointer.text().encode())
        if self._signer is not None:
            check_serial(self._seen, statement_of(pointer, self._signer.public))
        return pointer

    def last(self, pointer: Pointer | None, workload: str, *, by_hand: bool = False) -> Statement | None:
        """What was stated last, with our signature and of this very pointer; None if nothing was signed yet.

        Where a person decides (`by_hand`), also None for what is refused otherwise.

        Raises
        ------
        ConfigurationError
            The pointer is signed, and there is no key.
        BundleError
            It is signed by others, was changed, or is older than what was signed here.
        """
        if self._signer is None:
            if pointer is not None and pointer.signed is not None:
                self.require_signer()
            return None
        try:
            if pointer is None or pointer.signed is None:
                if workload in seen_in(self._seen):
                    raise BundleError(f"The current.json of {workload} was signed, and is not any more.")
                return None
            before = statement_of(pointer, self._signer.public)
            _check_says(pointer, before)
            check_serial(self._seen, before, remember=False)
        except BundleError as error:
            if by_hand:
                return None
            raise BundleError(error.message, hint=how_to_sign(workload)) from error
        return before

    def renewable(self, pointer: Pointer) -> Statement:
        """What was stated last, if it may be stated again: it was signed with our keys and has not expired."""
        before = self.last(pointer, pointer.workload)
        if before is None:
            message = f"The current.json of {pointer.workload} is not signed yet."
            raise BundleError(message, hint=how_to_sign(pointer.workload))
        check_statement(before, pointer.workload)
        return before

    def cosign(self, location: str, workload: str, trusted: Sequence[Ed25519PublicKey]) -> Pointer:
        """Add this signer's signatures to what one of the `trusted` keys states; the bundle was looked at before."""
        signer = self.require_signer()
        with self._root.lock(f"handoff-{workload}"):
            pointer = self.read(location, workload)
            if pointer is None or pointer.signed is None:
                raise BundleError(f"The current.json of {workload} is not signed yet.", hint=how_to_sign(workload))
            before = statement_of(pointer, trusted)
            _check_says(pointer, before)
            check_statement(before, workload)
            after = pointer.model_copy(update={"signed": cosigned(pointer.signed, signer)})
            self._root.put(f"{location}/current.json", after.text().encode())
            return after

    def require_signer(self) -> Signer:
        """The signer; `ConfigurationError` without one."""
        if self._signer is None:
            raise ConfigurationError(
                f"{self._root.url}: only who has the key can sign what is current.",
                hint=f"Set {VARIABLE} to it or to its path.",
            )
        return self._signer


def how_to_sign(workload: str, version: str = "") -> str:
    """What a person does who has looked at a bundle, and finds it good."""
    words = ["nightquant", "handoff", "sign", workload, version]
    return f"See what happened to it; where all is well, vouch for it: {' '.join(words).rstrip()}"


def _check_says(pointer: Pointer, statement: Statement) -> None:
    if not pointer.says(statement):
        raise BundleError(f"The current.json of {pointer.workload} is not what was signed.", hint="Do not use it.")
