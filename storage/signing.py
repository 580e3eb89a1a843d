"""Sign bundles in the OpenSSF Model Signing format and ``current.json`` with a P-256 key, and check both.

A bundle's signature is a DSSE envelope (github.com/secure-systems-lab/dsse), so only signing needs ``model-signing``.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from storage.errors import BundleError, ConfigurationError, UnavailableError
from storage.seal import SIGNATURE, SUMS, parse_sums

_ECDSA = ec.ECDSA(SHA256())


@dataclass(frozen=True)
class Signer:
    """A P-256 private key, the key's file, and the period after which a signed ``current.json`` expires."""

    path: Path
    key: ec.EllipticCurvePrivateKey
    valid: timedelta

    @staticmethod
    def of(path: str, days: float = 30.0) -> Signer | None:
        """Read an unencrypted P-256 private key from a PEM file; return None for ``""``."""
        if not path:
            return None
        if find_spec("model_signing") is None:
            raise UnavailableError("The signing extra is not installed.", hint="Run: pip install 'nightquant[signing]'")
        file = Path(path).expanduser().absolute()
        try:
            key = load_pem_private_key(file.read_bytes(), password=None)
            if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
                raise TypeError("expected a P-256 key")
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                "NIGHTQUANT_SIGNING_KEY is not the path of an unencrypted P-256 private key in PEM format.",
                hint="To create a key, run: openssl ecparam -name prime256v1 -genkey -noout -out signing-key.pem",
            ) from error
        return Signer(file, key, timedelta(days=days))

    def sign(self, message: bytes) -> str:
        """Return a signature in base64."""
        return b64encode(self.key.sign(message, _ECDSA)).decode()

    def sign_bundle(self, folder: Path) -> bytes:
        """Return the content of ``model.sig`` for a bundle."""
        from model_signing import hashing, signing  # optional, and slow to import

        # A bundle does not contain Git's files, so `model_signing verify` may refuse such files too.
        files = hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
        config = signing.Config().use_elliptic_key_signer(private_key=self.path).set_hashing_config(files)
        with TemporaryDirectory() as scratch:
            config.sign(folder, Path(scratch) / SIGNATURE)
            return (Path(scratch) / SIGNATURE).read_bytes()


def read_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Read a P-256 public key from a PEM file."""
    try:
        key = load_pem_public_key(path.read_bytes())
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise TypeError("expected a P-256 key")
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"The file {path} is not a P-256 public key in PEM format.") from error
    return key


def is_signed(message: bytes, signature: str, key: ec.EllipticCurvePublicKey) -> bool:
    """Return whether `key` made the base64 `signature` of `message`."""
    try:
        key.verify(b64decode(signature, validate=True), message, _ECDSA)
    except (InvalidSignature, ValueError):
        return False
    return True


def signed_sums(place: object, sums: bytes, signature: bytes, key: ec.EllipticCurvePublicKey) -> str:
    """Check that `key` signed the digests in `sums`, a bundle's ``SHA256SUMS``; return the digest of ``SHA256SUMS``."""
    digest = hashlib.sha256(sums).hexdigest()
    try:
        envelope = json.loads(signature)["dsseEnvelope"]
        kind, payload = envelope["payloadType"].encode(), b64decode(envelope["payload"])
        message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
        is_good = is_signed(message, envelope["signatures"][0]["sig"], key)
        files = {entry["name"]: entry["digest"] for entry in json.loads(payload)["predicate"]["resources"]}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_good, files = False, {}
    if not is_good or files != parse_sums(place, sums) | {SUMS: digest}:
        raise BundleError(
            f"{place}: the signature in {SIGNATURE} is missing, or does not match the key and {SUMS}.",
            hint="Do not use the bundle until you have inspected it. To sign it, run: nightquant handoff sign",
        )
    return digest
