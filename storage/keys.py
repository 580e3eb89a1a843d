"""Ed25519 keys: the private ones that sign, and the public ones that are believed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from storage.errors import ConfigurationError

VARIABLE = "NIGHTQUANT_SIGNING_KEY"
_PEM = re.compile(rb"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----\r?\n?", re.DOTALL)


@dataclass(frozen=True)
class Signer:
    """The keys that sign: the first one bundles, every one the pointer to the current bundle, which is `valid` so long.

    Several are for a change of keys, and for deploy teams that ask for more than one signature.
    """

    keys: tuple[Ed25519PrivateKey, ...]
    valid: timedelta

    @staticmethod
    def of(value: str, days: float = 30.0) -> Signer | None:
        """The signer of a setting: private keys in PEM without a password, one after the other, or their file's path.

        None where it is "".

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
    """Read public keys, each from its PEM file.

    Raises
    ------
    ConfigurationError
        One is no public Ed25519 key.
    """
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
    """How many different keys of `keys` made one of the signatures."""
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
