"""What is signed, and who is believed: Ed25519 keys, and statements that expire about the current bundle.

A statement is what The Update Framework's timestamp and snapshot are: a workload's version and the digest of its
``SHA256SUMS``, with a serial number that only grows and a time of expiry. Without a key one can therefore serve only
what is current, or an error. It is kept in a DSSE envelope (github.com/secure-systems-lab/dsse) in ``current.json``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from pydantic import AwareDatetime, Base64Bytes, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from storage.errors import BundleError, ConfigurationError, StoreError
from storage.local_root import LocalRoot
from storage.locks import file_lock

VARIABLE = "NIGHTQUANT_SIGNING_KEY"
VERSION = re.compile(r"\d{4}-\d{2}-\d{2}-[0-9a-f]{12}")
PAYLOAD_TYPE: Final = "application/vnd.nightquant.current+json"
_PEM = re.compile(rb"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----\r?\n?", re.DOTALL)
_SEEN = TypeAdapter(dict[str, tuple[int, str]])


@dataclass(frozen=True)
class Signer:
    """The keys that sign: the first one bundles, every one the pointer to the current bundle, which is `valid` so long.

    Several are for a change of keys, and for deploy teams that ask for more than one signature.
    """

    keys: tuple[Ed25519PrivateKey, ...]
    valid: timedelta

    @staticmethod
    def of(value: str, days: float = 30.0) -> Signer | None:
        """Return the signer of a setting: private keys in PEM without a password, or their file's path; None for "".

        Raises
        ------
        ConfigurationError
            It is neither; the message does not show it.
        """
        if not value:
            return None
        try:
            content = value.encode() if "-----BEGIN" in value else Path(value).expanduser().read_bytes()
            keys = tuple(load_pem_private_key(pem, password=None) for pem in _PEM.findall(content))
            if not keys or not all(isinstance(key, Ed25519PrivateKey) for key in keys):
                raise TypeError("no key, or another kind of key")
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{VARIABLE} is neither a private Ed25519 key in PEM without a password nor the path of one.",
                hint="Make one with: openssl genpkey -algorithm ed25519 -out signing-key.pem",
            ) from error
        return Signer(tuple(key for key in keys if isinstance(key, Ed25519PrivateKey)), timedelta(days=days))

    @property
    def public(self) -> tuple[Ed25519PublicKey, ...]:
        """The public halves, in the same order."""
        return tuple(key.public_key() for key in self.keys)


def public_keys(paths: Sequence[Path]) -> tuple[Ed25519PublicKey, ...]:
    """Read public keys, each from its PEM file; `ConfigurationError` names one that is not a public Ed25519 key."""
    found = []
    for path in paths:
        try:
            key = load_pem_public_key(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path}: it does not hold a public key in PEM.") from error
        if not isinstance(key, Ed25519PublicKey):
            raise ConfigurationError(f"{path}: not an Ed25519 key.")
        found.append(key)
    return tuple(found)


def signers_among(keys: Sequence[Ed25519PublicKey], signatures: Sequence[bytes], message: bytes) -> int:
    """Count the different keys of `keys` that made one of the signatures."""
    return sum(
        any(_is_good(key, signature, message) for signature in signatures)
        for key in {key.public_bytes_raw(): key for key in keys}.values()
    )


def _is_good(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


class FrozenDocument(BaseModel):
    """A part of ``current.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Statement(FrozenDocument):
    """What is signed: `version`, whose ``SHA256SUMS`` has the digest `sha256sums`, is the workload's current bundle.

    It was so at `signed_at`, and says nothing after `expires_at`. ``serial`` grows with every statement. ``withdrawn``
    is signed as well, or a night could be made to promote again what people rolled back from.
    """

    format: Literal[1] = 1
    workload: str
    version: Annotated[str, Field(pattern=f"^{VERSION.pattern}$")]
    sha256sums: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    withdrawn: tuple[str, ...] = ()
    serial: int = Field(ge=1, lt=2**53)
    signed_at: AwareDatetime
    expires_at: AwareDatetime


class Signature(FrozenDocument):
    """A key's signature, 64 bytes in base64; ``keyid`` is the SHA-256 of the public key's 32 bytes and only a hint."""

    keyid: str
    sig: Base64Bytes


class Envelope(FrozenDocument):
    """A DSSE envelope: a statement's bytes, and who signed them."""

    payload_type: Literal["application/vnd.nightquant.current+json"] = Field(PAYLOAD_TYPE, alias="payloadType")
    payload: Base64Bytes
    signatures: tuple[Signature, ...] = Field((), max_length=16)

    @staticmethod
    def of(statement: Statement, signer: Signer) -> Envelope:
        """Sign a statement."""
        return Envelope(payload=base64.b64encode(statement.model_dump_json().encode())).cosigned(signer)

    def cosigned(self, signer: Signer) -> Envelope:
        """Return the envelope with the signer's signatures as well."""
        mine = {hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest(): key for key in signer.keys}
        signatures = [each for each in self.signatures if each.keyid not in mine]
        signatures += [
            Signature(keyid=name, sig=base64.b64encode(key.sign(self._message()))) for name, key in mine.items()
        ]
        return self.model_copy(update={"signatures": tuple(signatures)})

    def statement(self, workload: str, keys: Sequence[Ed25519PublicKey], threshold: int = 1) -> Statement:
        """Return what at least `threshold` different keys of `keys` signed; `BundleError` if fewer did."""
        count = signers_among(keys, [each.sig for each in self.signatures], self._message())
        if count < threshold:
            raise BundleError(
                f"The current.json of {workload} is signed by {count} of the {len(keys)} given keys, and {threshold} "
                "must.",
                hint="Do not use it: it was changed, or signed by someone else.",
            )
        try:
            return Statement.model_validate_json(self.payload)
        except ValidationError as error:
            raise BundleError(
                f"The signed statement in the current.json of {workload} is of another version."
            ) from error

    def _message(self) -> bytes:
        """DSSE's pre-authentication encoding, over which signatures are made."""
        return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(self.payload), self.payload)


def check_statement(
    statement: Statement,
    workload: str,
    *,
    min_version: str = "",
    max_age: timedelta | None = None,
) -> None:
    """Refuse, with a `BundleError`, a statement of another workload, an expired one, or one that is too old.

    Parameters
    ----------
    min_version
        Refuse earlier nights than that of this version. Only the date counts: versions of one night have no order.
    max_age
        Refuse what was signed longer ago.
    """
    now = datetime.now(UTC)
    said = f"The signed current.json names {statement.version} of {statement.workload}"
    if statement.workload != workload:
        raise BundleError(f"{said}, not of {workload}.", hint="Do not use it: it is another workload's.")
    if now >= statement.expires_at:
        raise BundleError(
            f"{said} until {statement.expires_at:%Y-%m-%d %H:%M} UTC, which is over.",
            hint=f"Fetch it again; if it is the newest, run a night, or: nightquant handoff sign {workload}",
        )
    if max_age is not None and now - statement.signed_at > max_age:
        raise BundleError(
            f"{said} as of {statement.signed_at:%Y-%m-%d %H:%M} UTC, which is longer ago than allowed.",
            hint="Fetch it again.",
        )
    if statement.version[:10] < min_version[:10]:
        raise BundleError(f"{said}, which is of an earlier night than {min_version}.")


def check_serial(path: Path, statement: Statement, *, remember: bool = True) -> None:
    """Refuse a statement that is older than the newest one of its workload that was seen, and remember this one.

    `path` is a small JSON file, one for any number of workloads, which is made if it is missing.

    Raises
    ------
    BundleError
        A newer statement was seen, or another one with this serial.
    ConfigurationError
        The file is damaged.
    """
    digest = hashlib.sha256(statement.model_dump_json().encode()).hexdigest()
    with file_lock(path.with_name(f"{path.name}.lock")):
        seen = seen_in(path)
        serial, known = seen.get(statement.workload, (0, ""))
        if statement.serial < serial or (statement.serial == serial and digest != known):
            raise BundleError(
                f"The signed current.json of {statement.workload} has the serial {statement.serial}, and {serial} "
                "was seen before: it is an old copy.",
                hint=f"Do not use it, and fetch it again. What was seen is kept in {path}.",
            )
        if remember:
            seen[statement.workload] = (statement.serial, digest)
            LocalRoot(path.absolute().parent).put(path.name, (json.dumps(seen, indent=1) + "\n").encode())


def seen_in(path: Path) -> dict[str, tuple[int, str]]:
    """Return serial and digest of the newest statement that was seen, by workload; {} if there is no such file yet."""
    try:
        return _SEEN.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValidationError as error:
        raise ConfigurationError(f"{path}: not a file of what was seen; restore it from a copy.") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}.") from error
