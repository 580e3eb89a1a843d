from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from storage.errors import BundleError, ConfigurationError
from storage.seal import SIGNATURE, SUMS, check_signature, check_sums, sign, signing_key, write_sums
from tests.storage.bundle_files import fill, public_key_text


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    fill(folder)
    return folder


def test_a_sealed_folder_passes_and_sealing_again_yields_the_same_digest(bundle: Path):
    assert check_sums(bundle) == write_sums(bundle)


def test_sha256sum_reads_the_list(bundle: Path):
    done = subprocess.run(["sha256sum", "--strict", "-c", SUMS], cwd=bundle, capture_output=True, check=False)
    assert done.returncode == 0


def _link(folder: Path) -> None:
    (folder / "file-0.bin").rename(folder.parent / "outside.bin")
    (folder / "file-0.bin").symlink_to(folder.parent / "outside.bin")


def _lines(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        lines = (folder / SUMS).read_text().splitlines(keepends=True)
        (folder / SUMS).write_bytes("".join(change(lines)).encode())

    return edit


CHANGES: dict[str, Callable[[Path], object]] = {
    "a changed byte": lambda folder: (folder / "file-0.bin").write_bytes(b"other"),
    "a file gone": lambda folder: (folder / "file-0.bin").unlink(),
    "a file more": lambda folder: (folder / "more.bin").write_bytes(b""),
    "a hidden file more": lambda folder: (folder / ".hidden").write_bytes(b""),
    "a folder more": lambda folder: (folder / "more").mkdir(),
    "a pipe more": lambda folder: os.mkfifo(folder / "pipe"),
    "a link to the same bytes": _link,
    "a dangling link": lambda folder: (folder / "link").symlink_to("nowhere"),
    "no list": lambda folder: (folder / SUMS).unlink(),
    "an empty list": lambda folder: (folder / SUMS).write_bytes(b""),
    "a list in another order": _lines(lambda lines: lines[::-1]),
    "a line twice": _lines(lambda lines: [lines[0], *lines]),
    "a line less": _lines(lambda lines: lines[1:]),
    "no last newline": _lines(lambda lines: [*lines[:-1], lines[-1].rstrip("\n")]),
    "upper-case digests": _lines(lambda lines: [line[:64].upper() + line[64:] for line in lines]),
    "other line ends": _lines(lambda lines: [line.replace("\n", "\r\n") for line in lines]),
    "a path outside": _lines(lambda lines: [lines[0][:66] + "../outside.bin\n", *lines]),
    "an absolute path": _lines(lambda lines: [lines[0][:66] + "/etc/hostname\n", *lines]),
    "the list in the list": _lines(lambda lines: ["0" * 64 + f"  {SUMS}\n", *lines]),
    "an endless list": lambda folder: (folder / SUMS).write_bytes(b"\n" * (2 << 20)),
    "bytes that are no text": lambda folder: (folder / SUMS).write_bytes(bytes(range(256))),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_any_change_is_refused(change: Callable[[Path], object], bundle: Path):
    change(bundle)
    with pytest.raises(BundleError):
        check_sums(bundle)


def test_every_wrong_file_is_named(bundle: Path):
    (bundle / "file-0.bin").write_bytes(b"other")
    (bundle / "file-1.bin").unlink()
    (bundle / "more.bin").touch()
    with pytest.raises(BundleError, match=r"file-1.bin is missing; more.bin is not listed .*; file-0.bin was changed"):
        check_sums(bundle)


def test_a_link_to_a_bundle_and_a_path_that_is_none_are_refused(bundle: Path):
    link = bundle.parent / "link"
    link.symlink_to(bundle)
    for path in (link, bundle.parent / "nowhere", bundle / SUMS):
        with pytest.raises(BundleError):
            check_sums(path)


def test_a_folder_with_something_else_cannot_be_sealed(bundle: Path):
    (bundle / "sub").mkdir()
    with pytest.raises(BundleError, match="not a regular file"):
        write_sums(bundle)


def pem(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.fixture
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture
def signed(bundle: Path, key: Ed25519PrivateKey) -> Path:
    sign(bundle, key)
    (bundle.parent / "key.pub").write_text(public_key_text(key))
    return bundle


@pytest.fixture
def public(signed: Path) -> Path:
    return signed.parent / "key.pub"


def test_a_signature_is_valid_for_its_key_only(signed: Path, public: Path, tmp_path: Path):
    check_signature(signed, public)
    other = tmp_path / "other.pub"
    other.write_text(public_key_text(Ed25519PrivateKey.generate()))
    with pytest.raises(BundleError, match="signature"):
        check_signature(signed, other)


def test_a_rewritten_list_breaks_the_signature(signed: Path, public: Path):
    (signed / "file-0.bin").write_bytes(b"evil")
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


def test_a_wrong_key_is_reported_without_showing_it(tmp_path: Path):
    broken = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"
    for given in (broken, str(tmp_path / "none.pem"), pem(ec.generate_private_key(ec.SECP256R1()))):
        with pytest.raises(ConfigurationError) as caught:
            signing_key(given)
        assert "c2VjcmV0" not in str(caught.value)
        assert given not in str(caught.value)


def test_a_wrong_public_key_is_reported(signed: Path, tmp_path: Path, key: Ed25519PrivateKey):
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
