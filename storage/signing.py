"""Ed25519 signatures over ``SHA256SUMS``: who made a bundle, besides that it is whole.

The signature file holds the 64 raw bytes, so that OpenSSL can check it too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from storage.checksums import SIGNATURE, SUMS
from storage.errors import BundleError, ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

VARIABLE = "NIGHTQUANT_SIGNING_KEY"


def signing_key(value: str | None = None) -> Ed25519PrivateKey | None:
    """The key that signs bundles: `value`, or else the environment's; None where neither is given.

    Parameters
    ----------
    value
        A private Ed25519 key without a password: its PEM text, or the path of a file with it.

    Raises
    ------
    ConfigurationError
        What is given is no such key. The message never holds the key.
    """
    given = value or os.environ.get(VARIABLE, "")
    if not given:
        return None
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        pem = given.encode() if "-----BEGIN" in given else Path(given).expanduser().read_bytes()
        key = load_pem_private_key(pem, password=None)
    except (OSError, ValueError, TypeError) as error:
        raise _no_key() from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key()
    return key


def sign(folder: Path, key: Ed25519PrivateKey) -> None:
    """Sign a bundle's ``SHA256SUMS``; the same key and content give the same signature."""
    (folder / SIGNATURE).write_bytes(key.sign((folder / SUMS).read_bytes()))


def public_key_text(key: Ed25519PrivateKey) -> str:
    """The PEM text of the public key, to be given to whoever verifies."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def check_signature(folder: Path, public_key: Path) -> None:
    """Hold a bundle's signature against a public key.

    Raises
    ------
    ConfigurationError
        The key's file is no public Ed25519 key in PEM.
    BundleError
        The bundle is not signed, or not by this key.
    """
    from cryptography.exceptions import InvalidSignature

    key = _read_public_key(public_key)
    if not (folder / SIGNATURE).is_file():
        raise BundleError(f"{folder}: not signed: there is no {SIGNATURE}.", hint="Ask for the signed bundle.")
    try:
        key.verify((folder / SIGNATURE).read_bytes(), (folder / SUMS).read_bytes())
    except InvalidSignature as error:
        raise BundleError(
            f"{folder}: the signature is not the one that the key of {public_key.name} makes of this {SUMS}.",
            hint="Do not use it: it was changed, or signed by someone else.",
        ) from error


def _read_public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: no public key in PEM can be read from it.") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigurationError(f"{path}: not an Ed25519 key.")
    return key


def _no_key() -> ConfigurationError:
    return ConfigurationError(
        f"{VARIABLE} is neither a private Ed25519 key in PEM without a password nor the path of one.",
        hint="Make one with: openssl genpkey -algorithm ed25519 -out signing-key.pem",
    )
