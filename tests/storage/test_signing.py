"""Bundles in the OpenSSF Model Signing format: what the library's own command accepts, and what both refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from storage.errors import BundleError, ConfigurationError, UnavailableError
from storage.seal import SIGNATURE, SUMS, Signer, check_sums, read_public_key, signed_sums, write_sums
from tests.storage.bundle_files import fill, key_file, signer_of

CURVE, EDWARDS = ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signed") / "bundle"
    folder.mkdir()
    fill(folder)
    (folder / SIGNATURE).write_bytes(signer_of().sign_bundle(folder))
    return folder


@pytest.fixture
def bundle(signed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(signed, tmp_path / "bundle"))


def ours(folder: Path, name: str = "ours") -> str:
    """What nightquant says of the signature: the digest of the list that it covers."""
    key = read_public_key(key_file(name).with_suffix(".pub"))
    return signed_sums(folder, (folder / SUMS).read_bytes(), (folder / SIGNATURE).read_bytes(), key)


def model_signing(folder: Path, name: str = "ours") -> bool:
    """Whether the library's command accepts the bundle; the command runs without nightquant's modules."""
    program = Path(sys.executable).with_name("model_signing")
    command = [program, "verify", "key", folder, "--signature", folder / SIGNATURE, "--no-ignore-git-paths"]
    command += ["--public_key", key_file(name).with_suffix(".pub")]
    done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "Verification failed" in done.stderr, done.stderr
    return done.returncode == 0


@pytest.mark.slow
def test_the_librarys_command_alone_accepts_a_bundle_with_the_right_key_only(bundle: Path):
    assert model_signing(bundle)
    assert not model_signing(bundle, "others")
    assert ours(bundle) == check_sums(bundle)
    with pytest.raises(BundleError, match="does not match the key"):
        ours(bundle, "others")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a changed byte": lambda folder: (folder / "file-0.bin").write_bytes(b"other"),
    "a file gone": lambda folder: (folder / "file-0.bin").unlink(),
    "a file more": lambda folder: (folder / "more.bin").touch(),
    "a file of Git's more": lambda folder: (folder / ".gitattributes").touch(),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_both_refuse_a_changed_bundle_and_one_whose_list_was_rewritten(change: Callable[[Path], object], bundle: Path):
    change(bundle)
    with pytest.raises(BundleError):
        check_sums(bundle)
    if not (bundle / ".gitattributes").exists():  # such a name cannot be in a list
        write_sums(bundle)
        check_sums(bundle)
        with pytest.raises(BundleError, match="does not match the key"):
            ours(bundle)
    assert not model_signing(bundle)


def _edit(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def edited(content: bytes) -> bytes:
        document = json.loads(content)
        change(document["dsseEnvelope"])
        return json.dumps(document).encode()

    return edited


def _add_a_file(envelope: dict[str, Any]) -> None:
    payload = json.loads(b64decode(envelope["payload"]))
    payload["predicate"]["resources"].append({"name": "more.bin", "digest": "0" * 64, "algorithm": "sha256"})
    envelope["payload"] = b64encode(json.dumps(payload).encode()).decode()


SIGNATURES: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda _: b"",
    "not JSON": lambda content: content[:-5],
    "deep": lambda _: b"[" * 100_000,
    "no signature": _edit(lambda envelope: envelope["signatures"].clear()),
    "another type": _edit(lambda envelope: envelope.update(payloadType="text/plain")),
    "one file more": _edit(_add_a_file),
}


@pytest.mark.parametrize("change", SIGNATURES.values(), ids=SIGNATURES.keys())
def test_a_damaged_signature_is_refused(change: Callable[[bytes], bytes], bundle: Path):
    (bundle / SIGNATURE).write_bytes(change((bundle / SIGNATURE).read_bytes()))
    with pytest.raises(BundleError, match="does not match the key"):
        ours(bundle)


def test_a_signature_of_other_files_with_the_same_list_is_refused(bundle: Path):
    # A writer may change a file between the review of a bundle and its signature.
    (bundle / "file-0.bin").write_bytes(b"evil")
    (bundle / SIGNATURE).write_bytes(signer_of().sign_bundle(bundle))
    with pytest.raises(BundleError, match="does not match the key"):
        ours(bundle)


def test_a_wrong_private_key_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert Signer.of("") is None
    for name, key in (("curve", CURVE), ("edwards", EDWARDS)):
        (tmp_path / name).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "text").write_text("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----")
    for path in (*tmp_path.iterdir(), tmp_path / "none", tmp_path, key_file().with_suffix(".pub")):
        with pytest.raises(ConfigurationError, match="NIGHTQUANT_SIGNING_KEY is not the path of") as caught:
            Signer.of(str(path))
        assert "c2VjcmV0" not in str(caught.value)
    monkeypatch.setattr("storage.seal.find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match=r"nightquant\[signing\]"):
        Signer.of(str(key_file()))


def test_a_wrong_public_key_is_reported(tmp_path: Path):
    for name, key in (("curve", CURVE), ("edwards", EDWARDS)):
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (tmp_path / name).write_bytes(public)
    for path in (*tmp_path.iterdir(), tmp_path / "none", key_file()):
        with pytest.raises(ConfigurationError, match=path.name):
            read_public_key(path)
