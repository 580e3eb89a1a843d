"""``current.json``: a workload's current bundle, the switches that led to this bundle, and a signed statement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import ValidationError

from storage.errors import BundleError, ConfigurationError
from storage.trust import (
    VARIABLE,
    VERSION,
    Envelope,
    FrozenDocument,
    Signer,
    Statement,
    check_serial,
    check_statement,
)

Action = Literal["promote", "promote-by-hand", "rollback"]
WORKLOAD = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_LONGEST = 16 << 20  # maximum size in bytes; each switch adds about 300 bytes


class Switch(FrozenDocument):
    """A change of the current bundle: the new version, and the change's time, author and reason."""

    action: Action
    version: str
    sha256sums: str
    at: datetime
    by: str
    reason: str


class Pointer(FrozenDocument):
    """Content of ``current.json``: the deployed bundle, and every switch that led to this bundle, oldest first.

    ``sha256sums`` is the digest of the bundle's ``SHA256SUMS``. Users rolled back from the ``withdrawn`` versions, so
    runs never promote them. ``signed`` is None if there is no signing key.
    """

    format: Literal[1] = 1
    workload: str
    version: str
    sha256sums: str
    withdrawn: tuple[str, ...] = ()
    history: tuple[Switch, ...]
    signed: Envelope | None = None

    def previous(self) -> str | None:
        """Return the most recent earlier version that is not withdrawn, or None if no such version exists."""
        passed_over = {self.version, *self.withdrawn}
        return next((switch.version for switch in reversed(self.history) if switch.version not in passed_over), None)

    def text(self) -> str:
        """Return the content of ``current.json``."""
        return self.model_dump_json(indent=1, exclude_none=True, by_alias=True) + "\n"

    def statement(self, keys: Sequence[Ed25519PublicKey], threshold: int = 1) -> Statement:
        """Return the pointer's statement, which at least `threshold` different `keys` must have signed.

        Raises
        ------
        BundleError
            Fewer than `threshold` of the `keys` signed the statement.
        """
        if self.signed is None:
            name = self.workload
            raise BundleError(
                f"The current.json of {name} is not signed.",
                hint=f"On a host that writes to the store, set {VARIABLE} and run: nightquant handoff sign {name}",
            )
        return self.signed.statement(self.workload, keys, threshold)

    def check_says(self, statement: Statement) -> None:
        """Raise `BundleError` if the pointer differs from a signed statement."""
        fields = ("workload", "version", "sha256sums", "withdrawn")
        if any(getattr(self, name) != getattr(statement, name) for name in fields):
            raise BundleError(
                f"The current.json of {self.workload} differs from its signed statement.",
                hint="Do not use current.json, because it was changed after it was signed.",
            )


def switched(pointer: Pointer | None, workload: str, switch: Switch) -> Pointer:
    """Return the unsigned pointer that results from a switch; a rollback withdraws the previously current version."""
    withdrawn: set[str] = set()
    if pointer is not None:
        left = {pointer.version} if switch.action == "rollback" else set()
        withdrawn = {*pointer.withdrawn} - {switch.version} | left
    return Pointer(
        workload=workload,
        version=switch.version,
        sha256sums=switch.sha256sums,
        withdrawn=tuple(sorted(withdrawn)),
        history=(*(pointer.history if pointer else ()), switch),
    )


def signed(pointer: Pointer, signer: Signer, before: Statement | None, now: datetime) -> Pointer:
    """Return the pointer with a new signed statement, whose serial number is higher than the number in `before`."""
    # Serial numbers are based on the current time, so that they increase even if the previous statement was lost.
    serial = int(now.timestamp())
    if before is not None:
        serial = max(serial, before.serial + 1)
    statement = Statement(
        workload=pointer.workload,
        version=pointer.version,
        sha256sums=pointer.sha256sums,
        withdrawn=pointer.withdrawn,
        serial=serial,
        signed_at=now,
        expires_at=now + signer.valid,
    )
    return pointer.model_copy(update={"signed": Envelope.of(statement, signer)})


def stated(
    path: Path,
    workload: str,
    keys: Sequence[Ed25519PublicKey],
    *,
    threshold: int = 1,
    min_version: str = "",
    max_age: timedelta | None = None,
    state: Path | None = None,
) -> Statement:
    """Verify a copy of ``current.json`` for a deployment team that trusts only `keys`; return the statement.

    Parameters
    ----------
    keys, threshold
        At least `threshold` of these public keys must have signed the statement.
    min_version, max_age
        See `check_statement`.
    state
        File that `check_serial` reads and writes.

    Raises
    ------
    BundleError
        The copy is not a valid ``current.json``, lacks required signatures, has expired or is too old.
    ConfigurationError
        The threshold exceeds the number of keys, or `state` is damaged.
    """
    if threshold > (given := len({key.public_bytes_raw() for key in keys})):
        raise ConfigurationError(
            f"The threshold of {threshold} signatures is larger than the number of public keys ({given}).",
            hint="Pass more public keys, or lower the threshold.",
        )
    try:
        if path.stat().st_size > _LONGEST:
            raise BundleError(
                f"{path} is larger than any current.json that nightquant writes.", hint="Fetch the file again."
            )
        pointer = Pointer.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a valid current.json"
        raise BundleError(f"{path} cannot be read: {reason}.", hint="Fetch the file again.") from error
    statement = pointer.statement(keys, threshold)
    check_statement(statement, workload, min_version=min_version, max_age=max_age)
    if state is not None:
        check_serial(state, statement)
    return statement


def location_of(workload: str, version: str | None = None) -> str:
    """Return the folder of a workload's bundles, or of the bundle `version`, relative to the store's root.

    Raises
    ------
    ConfigurationError
        The workload's name or the version is not valid.
    """
    for name, pattern in ((workload, WORKLOAD), (version, VERSION)):
        if name is not None and not pattern.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} is not a valid workload name or bundle version; valid examples are word-lm and "
                "2026-11-21-0123456789ab."
            )
    return f"handoff/{workload}" if version is None else f"handoff/{workload}/{version}"
