"""Ed25519 keys, and signed, expiring statements about the current bundle.

A statement plays the role of the timestamp and snapshot metadata in The Update Framework. A statement contains a
bundle's version, the digest of ``SHA256SUMS``, an increasing serial number and an expiry time. An attacker without a
key can therefore only serve the current bundle or cause an error. ``current.json`` stores the statement in a DSSE
envelope (github.com/secure-systems-lab/dsse).
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
_EXPECTED = "Pass the PEM file of an Ed25519 public key."
_SEEN = TypeAdapter(dict[str, tuple[int, str]])


@dataclass(frozen=True)
class Signer:
    """Signing keys. The first key signs bundles. All keys sign the pointer.

    The pointer's signatures expire after the period ``valid``. Use several keys while you replace a key, or if
    deployment teams require more than one signature.
    """

    keys: tuple[Ed25519PrivateKey, ...]
    valid: timedelta

    @staticmethod
    def of(value: str, days: float = 30.0) -> Signer | None:
        """Read unencrypted private keys from PEM text or from a PEM file; return None for ``""``.

        Raises
        ------
        ConfigurationError
            The value contains neither private keys in PEM format nor the path of a key file. The error message does
            not contain the value.
        """
        if not value:
            return None
        try:
            content = value.encode() if "-----BEGIN" in value else Path(value).expanduser().read_bytes()
            keys = tuple(load_pem_private_key(pem, password=None) for pem in _PEM.findall(content))
            if not keys or not all(isinstance(key, Ed25519PrivateKey) for key in keys):
                raise TypeError("expected one or more private Ed25519 keys")
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{VARIABLE} is neither an unencrypted Ed25519 private key in PEM format nor the path of a readable "
                "key file.",
                hint="To create a key, run: openssl genpkey -algorithm ed25519 -out signing-key.pem",
            ) from error
        return Signer(tuple(key for key in keys if isinstance(key, Ed25519PrivateKey)), timedelta(days=days))

    @property
    def public(self) -> tuple[Ed25519PublicKey, ...]:
        """Public keys, in the order of ``keys``."""
        return tuple(key.public_key() for key in self.keys)


def public_keys(paths: Sequence[Path]) -> tuple[Ed25519PublicKey, ...]:
    """Read a public key from each PEM file; raise `ConfigurationError` for a file without a public Ed25519 key."""
    keys = []
    for path in paths:
        try:
            key = load_pem_public_key(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"The file {path} cannot be read as a public key in PEM format.", hint=_EXPECTED
            ) from error
        if not isinstance(key, Ed25519PublicKey):
            raise ConfigurationError(f"The public key in {path} is not an Ed25519 key.", hint=_EXPECTED)
        keys.append(key)
    return tuple(keys)


def signers_among(keys: Sequence[Ed25519PublicKey], signatures: Sequence[bytes], message: bytes) -> int:
    """Return the number of different `keys` that made at least one of the `signatures`."""
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
    """Base class for the parts of ``current.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Statement(FrozenDocument):
    """A claim that `version`, whose ``SHA256SUMS`` has the digest `sha256sums`, is the workload's current bundle.

    The statement is valid from `signed_at` until `expires_at`. ``serial`` increases with every statement. ``withdrawn``
    is also signed; otherwise, an attacker could make a run promote a withdrawn bundle again.
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
    """A 64-byte signature in base64; ``keyid``, the SHA-256 of the 32-byte public key, is only a hint."""

    keyid: str
    sig: Base64Bytes


class Envelope(FrozenDocument):
    """A DSSE envelope: a statement's bytes and their signatures."""

    payload_type: Literal["application/vnd.nightquant.current+json"] = Field(PAYLOAD_TYPE, alias="payloadType")
    payload: Base64Bytes
    signatures: tuple[Signature, ...] = Field((), max_length=16)

    @staticmethod
    def of(statement: Statement, signer: Signer) -> Envelope:
        """Sign a statement."""
        return Envelope(payload=base64.b64encode(statement.model_dump_json().encode())).cosigned(signer)

    def cosigned(self, signer: Signer) -> Envelope:
        """Return the envelope with the signer's signatures added."""
        keys = {hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest(): key for key in signer.keys}
        signatures = [signature for signature in self.signatures if signature.keyid not in keys]
        signatures += [
            Signature(keyid=name, sig=base64.b64encode(key.sign(self._message()))) for name, key in keys.items()
        ]
        return self.model_copy(update={"signatures": tuple(signatures)})

    def statement(self, workload: str, keys: Sequence[Ed25519PublicKey], threshold: int = 1) -> Statement:
        """Return the statement; raise `BundleError` if fewer than `threshold` different `keys` signed it."""
        count = signers_among(keys, [signature.sig for signature in self.signatures], self._message())
        if count < threshold:
            raise BundleError(
                f"The current.json of {workload} has valid signatures for only {count} of the {len(keys)} given keys, "
                f"but at least {threshold} are required.",
                hint="Do not use the file, because it was changed or was signed with other keys.",
            )
        try:
            return Statement.model_validate_json(self.payload)
        except ValidationError as error:
            raise BundleError(
                f"The signed statement in the current.json of {workload} has an unknown format.",
                hint="Update nightquant, or fetch current.json again.",
            ) from error

    def _message(self) -> bytes:
        """Return DSSE's pre-authentication encoding, which the keys sign."""
        return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(self.payload), self.payload)


def check_statement(
    statement: Statement,
    workload: str,
    *,
    min_version: str = "",
    max_age: timedelta | None = None,
) -> None:
    """Raise `BundleError` if a statement belongs to another workload, has expired or is too old.

    Parameters
    ----------
    min_version
        Oldest version to accept. Only the version's date counts, because versions from one night are not ordered.
    max_age
        Longest allowed time since the statement was signed.
    """
    now = datetime.now(UTC)
    bundle = f"{statement.version} of {statement.workload}"
    if statement.workload != workload:
        raise BundleError(
            f"The signed current.json names {bundle}, but the expected workload is {workload}.",
            hint=f"Do not use this current.json; fetch the current.json of {workload}.",
        )
    if now >= statement.expires_at:
        raise BundleError(
            f"The signed current.json that names {bundle} expired at {statement.expires_at:%Y-%m-%d %H:%M} UTC.",
            hint="Fetch current.json again. If the latest current.json has also expired, run "
            f"nightquant handoff sign {workload} or nightquant nightly.",
        )
    if max_age is not None and now - statement.signed_at > max_age:
        raise BundleError(
            f"The signed current.json that names {bundle} is too old: it was signed at "
            f"{statement.signed_at:%Y-%m-%d %H:%M} UTC, but the maximum age is {max_age / timedelta(hours=1):g} h.",
            hint="Fetch current.json again.",
        )
    if statement.version[:10] < min_version[:10]:
        raise BundleError(
            f"The signed current.json names {bundle}, but the minimum version is {min_version}.",
            hint="Fetch current.json again.",
        )


def check_serial(path: Path, statement: Statement) -> None:
    """Refuse a statement older than the latest recorded statement for its workload; otherwise, record the statement.

    The JSON file at `path` can contain records for several workloads, and is created if it does not exist.

    Raises
    ------
    BundleError
        A newer statement, or a different statement with the same serial, has already been recorded.
    ConfigurationError
        The file is damaged.
    """
    digest = hashlib.sha256(statement.model_dump_json().encode()).hexdigest()
    with file_lock(path.with_name(f"{path.name}.lock")):
        seen = seen_in(path)
        serial, known = seen.get(statement.workload, (0, ""))
        if statement.serial < serial or (statement.serial == serial and digest != known):
            raise BundleError(
                f"The signed current.json of {statement.workload} is an old copy: this copy has serial "
                f"{statement.serial}, but nightquant has already accepted a different copy with serial {serial}.",
                hint=f"Do not use this copy; fetch current.json again. The accepted serials are recorded in {path}.",
            )
        seen[statement.workload] = (statement.serial, digest)
        LocalRoot(path.absolute().parent).put(path.name, (json.dumps(seen, indent=1) + "\n").encode())


def seen_in(path: Path) -> dict[str, tuple[int, str]]:
    """Return the serial and digest of each workload's latest statement, or ``{}`` if the file does not exist yet."""
    try:
        return _SEEN.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValidationError as error:
        raise ConfigurationError(
            f"The file {path} is not a valid record of serial numbers.", hint="Restore the file from a backup."
        ) from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}.") from error
