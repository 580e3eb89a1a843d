"""Bundles of a few bytes, for tests of how they are kept."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from storage.bundles import BundleStore
from storage.seal import write_sums


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
        bundles.publish(folder, workload, version(number))
    bundles.promote(workload, version(number), by="a test", reason=f"number {number}")
    return version(number)


def public_key_text(key: Ed25519PrivateKey) -> str:
    """The PEM text of the public key."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
