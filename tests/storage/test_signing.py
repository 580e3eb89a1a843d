from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from storage.checksums import SIGNATURE, SUMS
from storage.errors import BundleError, ConfigurationError
from storage.signing import check_signature, public_key_text, sign, signing_key
from tests.storage.bundle_files import fill


def pem(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.fixture
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture
def signed(tmp_path: Path, key: Ed25519PrivateKey) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    fill(folder)
    sign(folder, key)
    (tmp_path / "key.pub").write_text(public_key_text(key))
    return folder


@pytest.fixture
def public(signed: Path) -> Path:
    return signed.parent / "key.pub"


def test_a_signature_holds_for_its_key_only(signed: Path, public: Path, tmp_path: Path):
    check_signature(signed, public)
    other = tmp_path / "other.pub"
    other.write_text(public_key_text(Ed25519PrivateKey.generate()))
    with pytest.raises(BundleError, match="signature"):
        check_signature(signed, other)


def test_a_rewritten_list_breaks_the_signature(signed: Path, public: Path):
    (signed / "file-0.bin").write_bytes(b"evil")
    from storage.checksums import check_sums, write_sums

    write_sums(signed)
    check_sums(signed)
    with pytest.raises(BundleError, match="signature"):
        check_signature(signed, public)


@pytest.mark.parametrize("content", [b"", b"short", bytes(64), bytes(65)])
def test_a_damaged_signature_is_refused(content: bytes, signed: Path, public: Path):
    (signed / SIGNATURE).write_bytes(content)
    with pytest.raises(BundleError, match="signature"):
        check_signature(signed, public)


def test_an_unsigned_bundle_is_refused_where_a_key_is_given(signed: Path, public: Path):
    (signed / SIGNATURE).unlink()
    with pytest.raises(BundleError, match="not signed"):
        check_signature(signed, public)


def test_the_key_comes_as_text_or_as_a_path_from_the_environment(
    key: Ed25519PrivateKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("NIGHTQUANT_SIGNING_KEY", raising=False)
    assert signing_key() is None
    (tmp_path / "key.pem").write_text(pem(key))
    for given in (pem(key), str(tmp_path / "key.pem")):
        monkeypatch.setenv("NIGHTQUANT_SIGNING_KEY", given)
        found = signing_key()
        assert found is not None
        assert public_key_text(found) == public_key_text(key)


def test_a_wrong_key_is_told_without_showing_it(tmp_path: Path):
    broken = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"
    for given in (broken, str(tmp_path / "none.pem"), pem(ec.generate_private_key(ec.SECP256R1()))):
        with pytest.raises(ConfigurationError) as caught:
            signing_key(given)
        assert "c2VjcmV0" not in str(caught.value)
        assert given not in str(caught.value)


def test_a_wrong_public_key_is_told(signed: Path, tmp_path: Path, key: Ed25519PrivateKey):
    private, other = tmp_path / "private.pem", tmp_path / "other.pem"
    private.write_text(pem(key))
    curve = ec.generate_private_key(ec.SECP256R1()).public_key()
    other.write_bytes(curve.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    for path in (private, other, tmp_path / "none.pem"):
        with pytest.raises(ConfigurationError):
            check_signature(signed, path)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_checks_it_as_the_model_card_says(signed: Path, public: Path):
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public), "-rawin", "-in", SUMS]
    command += ["-sigfile", SIGNATURE]
    assert subprocess.run(command, cwd=signed, capture_output=True, check=False).returncode == 0
    (signed / SUMS).write_bytes((signed / SUMS).read_bytes() + b"\n")
    assert subprocess.run(command, cwd=signed, capture_output=True, check=False).returncode != 0
