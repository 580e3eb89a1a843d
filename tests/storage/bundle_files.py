"""Bundles of a few bytes, for tests of how they are kept."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from storage.bundles import BundleStore
from storage.pointer import Pointer
from storage.seal import SIGNATURE, Signer, write_sums

_KEYS = TemporaryDirectory(prefix="nightquant-keys-")


def fill(folder: Path, content: bytes = b"weights", files: int = 3) -> None:
    """Write and seal a bundle."""
    for index in range(files):
        (folder / f"file-{index}.bin").write_bytes(content + bytes([index]))
    write_sums(folder)


def version(number: int, night: str = "2026-11-21") -> str:
    """A valid version."""
    return f"{night}-{number:012x}"


def publish(bundles: BundleStore, number: int, workload: str = "word-lm", *, files: int = 3) -> str:
    """Publish and promote a bundle that only its number decides."""
    with bundles.draft() as folder:
        fill(folder, str(number).encode(), files)
        if bundles.signer is not None:
            (folder / SIGNATURE).write_bytes(bundles.signer.sign_bundle(folder))
        bundles.publish(folder, workload, version(number))
    promote(bundles, version(number), workload, by="a test", reason=f"number {number}")
    return version(number)


def promote(
    bundles: BundleStore, chosen: str, workload: str = "word-lm", *, by: str = "a night", reason: str = "fastest"
) -> Pointer:
    """Promote a bundle as a night does during which nobody else switches."""
    pointer = bundles.pointer(workload)
    replacing = pointer.version if pointer else None
    return bundles.promote(workload, chosen, by=by, reason=reason, replacing=replacing)


def key_file(name: str = "ours") -> Path:
    """The PEM file of a private key; each name has one key, and the public key is in the same place, as ``.pub``."""
    path = Path(_KEYS.name) / f"{name}.pem"
    if not path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        path.with_suffix(".pub").write_bytes(public)
    return path


def signer_of(name: str = "ours", days: float = 30.0) -> Signer:
    """The signer with the key of this name."""
    found = Signer.of(str(key_file(name)), days)
    assert found is not None
    return found
