"""``current.json``: which bundle is current, how it came to be, and a signed statement of it that expires.

The statement is what The Update Framework's timestamp and snapshot are: it binds a workload's name to a version and to
the digest of that bundle's ``SHA256SUMS``, with a serial number that only grows and a time after which it is worth
nothing. Who can write to the store, and has no key, can therefore serve what is current, or an error. It is kept in a
DSSE envelope (github.com/secure-systems-lab/dsse), in the file that it speaks of, so that both change in one step.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import AwareDatetime, Base64Bytes, BaseModel, ConfigDict, Field, ValidationError

from storage.errors import BundleError
from storage.keys import Signer, signers_among

VERSION = re.compile(r"\d{4}-\d{2}-\d{2}-[0-9a-f]{12}")
PAYLOAD_TYPE: Final = "application/vnd.nightquant.current+json"
Action = Literal["promote", "promote-by-hand", "rollback"]

_LONGEST = 16 << 20  # a switch takes 300 bytes
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Version = Annotated[str, Field(pattern=f"^{VERSION.pattern}$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Switch(_Frozen):
    """One change of the current bundle: to what, when, by whom and why."""

    action: Action
    version: str
    sha256sums: str
    at: datetime
    by: str
    reason: str


class Statement(_Frozen):
    """What is signed: `version`, whose ``SHA256SUMS`` has the digest `sha256sums`, is the workload's current bundle.

    It was so at `signed_at`, and says nothing after `expires_at`. ``serial`` grows with every statement. ``withdrawn``
    is signed as well, or a night could be made to promote again what people rolled back from.
    """

    format: Literal[1] = 1
    workload: str
    version: _Version
    sha256sums: _Digest
    withdrawn: tuple[str, ...] = ()
    serial: int = Field(ge=1, lt=2**53)
    signed_at: AwareDatetime
    expires_at: AwareDatetime


class Signature(_Frozen):
    """A key's signature, 64 bytes in base64; ``keyid`` is the SHA-256 of the public key's 32 bytes and only a hint."""

    keyid: str
    sig: Base64Bytes


class Envelope(_Frozen):
    """A DSSE envelope: the statement's bytes, and who signed them."""

    payload_type: Literal["application/vnd.nightquant.current+json"] = Field(alias="payloadType")
    payload: Base64Bytes
    signatures: tuple[Signature, ...] = Field(max_length=16)


class Pointer(_Frozen):
    """``current.json``: the bundle that is deployed, with every switch that led to it, oldest first.

    ``sha256sums``, the digest of the bundle's ``SHA256SUMS``, names its content. ``withdrawn`` lists the versions that
    people rolled back from, which no night promotes again by itself. ``signed`` is there where a key is set.
    """

    format: Literal[1] = 1
    workload: str
    version: str
    sha256sums: str
    withdrawn: tuple[str, ...] = ()
    history: tuple[Switch, ...]
    signed: Envelope | None = None

    def says(self, statement: Statement) -> bool:
        """Whether the statement is of this very pointer."""
        fields = ("workload", "version", "sha256sums", "withdrawn")
        return all(getattr(self, name) == getattr(statement, name) for name in fields)

    def previous(self) -> str | None:
        """Return the version that was current before this one and is not withdrawn; None if there is none."""
        passed_over = {self.version, *self.withdrawn}
        return next((switch.version for switch in reversed(self.history) if switch.version not in passed_over), None)

    def text(self) -> str:
        """The file's content."""
        return self.model_dump_json(indent=1, exclude_none=True, by_alias=True) + "\n"


def switched(pointer: Pointer | None, workload: str, switch: Switch) -> Pointer:
    """Return the unsigned pointer after a switch; a roll-back withdraws the version that was current."""
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
    """The pointer with a new statement, whose serial is above that of `before`."""
    statement = Statement(
        workload=pointer.workload,
        version=pointer.version,
        sha256sums=pointer.sha256sums,
        withdrawn=pointer.withdrawn,
        # The time, so that it grows where the one before was lost.
        serial=max(int(now.timestamp()), before.serial + 1 if before else 1),
        signed_at=now,
        expires_at=now + signer.valid,
    )
    payload = statement.model_dump_json().encode()
    envelope = Envelope(payloadType=PAYLOAD_TYPE, payload=base64.b64encode(payload), signatures=())
    return pointer.model_copy(update={"signed": cosigned(envelope, signer)})


def cosigned(envelope: Envelope, signer: Signer) -> Envelope:
    """The envelope with the signer's signatures as well."""
    mine = {hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest(): key for key in signer.keys}
    message = _encoded(envelope.payload)
    signatures = [each for each in envelope.signatures if each.keyid not in mine]
    signatures += [Signature(keyid=name, sig=base64.b64encode(key.sign(message))) for name, key in mine.items()]
    return envelope.model_copy(update={"signatures": tuple(signatures)})


def read_pointer(path: Path) -> Pointer:
    """Read a copy of ``current.json`` that nobody has vouched for.

    Raises
    ------
    BundleError
        It is not there, or is none.
    """
    try:
        if path.stat().st_size > _LONGEST:
            raise BundleError(f"{path}: it is longer than any that nightquant writes.")
        return Pointer.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no current.json"
        raise BundleError(f"{path}: cannot be read: {why}.", hint="Fetch it again.") from error


def statement_of(pointer: Pointer, keys: Sequence[Ed25519PublicKey], threshold: int = 1) -> Statement:
    """What a pointer states with the signatures of at least `threshold` different keys of `keys`.

    Raises
    ------
    BundleError
        It is not signed, or by fewer of these keys.
    """
    workload = pointer.workload
    if pointer.signed is None:
        raise BundleError(
            f"The current.json of {workload} is not signed.",
            hint=f"Where the store is written, set NIGHTQUANT_SIGNING_KEY and run: nightquant handoff sign {workload}",
        )
    message = _encoded(pointer.signed.payload)
    count = signers_among(keys, [each.sig for each in pointer.signed.signatures], message)
    if count < threshold:
        raise BundleError(
            f"The current.json of {workload} is signed by {count} of the {len(keys)} given keys, and {threshold} must.",
            hint="Do not use it: it was changed, or signed by someone else.",
        )
    try:
        return Statement.model_validate_json(pointer.signed.payload)
    except ValidationError as error:
        raise BundleError(f"The signed statement in the current.json of {workload} is of another version.") from error


def _encoded(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding, over which signatures are made."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)
