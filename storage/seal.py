"""Check a bundle's files and manifest, and sign bundles and ``current.json`` with a P-256 key.

A bundle is a folder of regular files with simple ASCII names, without subfolders. Links, subfolders, special files and
files with other names are refused without being opened. A bundle's signature has the OpenSSF Model Signing format, a
DSSE envelope (github.com/secure-systems-lab/dsse), so only signing needs ``model-signing``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from storage.digest import JsonObject, file_digest
from storage.errors import BundleError, ConfigurationError, UnavailableError

SUMS, SIGNATURE, MANIFEST = "SHA256SUMS", "model.sig", "manifest.json"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LINE = re.compile(rf"([0-9a-f]{{64}})  ({_NAME.pattern})\n")
_LONGEST = 1 << 20
_ECDSA = ec.ECDSA(SHA256())


def write_sums(folder: Path) -> str:
    """Write ``SHA256SUMS`` for all files of a flat folder, sorted by name; return the digest of ``SHA256SUMS``."""
    names = sorted(_regular_files(folder) - {SUMS, SIGNATURE})
    content = _text({name: file_digest(folder / name) for name in names})
    (folder / SUMS).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def check_sums(folder: Path) -> str:
    """Check a folder against its ``SHA256SUMS``; return the digest of ``SHA256SUMS``, which identifies the bundle."""
    present = _regular_files(folder)
    if SUMS not in present:
        raise BundleError(
            f"{folder} is not a bundle, because {SUMS} is missing.", hint="Fetch the complete bundle again."
        )
    with (folder / SUMS).open("rb") as stream:
        content = stream.read(_LONGEST)
    listed = parse_sums(folder, content)
    actual = {name: file_digest(folder / name) for name in sorted(present - {SUMS, SIGNATURE})}
    if content != _text(actual):
        problems = [f"{name} is missing" for name in sorted(listed.keys() - actual.keys())]
        problems += [f"{name} is not listed in {SUMS}" for name in sorted(actual.keys() - listed.keys())]
        problems += [f"{name} was changed" for name in actual if name in listed and actual[name] != listed[name]]
        # nightquant sorts the names and lists each name once, so that a bundle has exactly one ``SHA256SUMS``.
        problems = problems or [f"the lines of {SUMS} are unsorted or repeated"]
        raise BundleError(f"{folder}: {'; '.join(problems)}.", hint="Do not use the bundle; fetch it again.")
    return hashlib.sha256(content).hexdigest()


def parse_sums(folder: object, content: bytes) -> dict[str, str]:
    """Return the digests in the ``SHA256SUMS`` of the bundle in `folder`, keyed by file name."""
    matches = [_LINE.fullmatch(line) for line in content.decode("latin-1").splitlines(keepends=True)]
    if not matches or not all(matches):
        raise BundleError(
            f"{folder}: {SUMS} is not a list of digests and file names.", hint="Do not use the bundle; fetch it again."
        )
    return {match[2]: match[1] for match in matches if match}


def _text(digests: Mapping[str, str]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode("ascii")


def _regular_files(folder: Path) -> set[str]:
    """Return the names of a folder's files; refuse links, subfolders and special files without opening them."""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise BundleError(
                f"{folder} is a link or is not a folder.", hint="Pass the path of the bundle's folder itself."
            )
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise BundleError(f"{folder}: cannot be read: {error.strerror or error}.") from error
    for entry in entries:
        check_name(folder, entry.name, is_file=entry.is_file(follow_symlinks=False))
    return {entry.name for entry in entries}


def check_name(folder: object, name: str, *, is_file: bool = True) -> None:
    """Raise `BundleError` unless a bundle can contain a file with this name."""
    if not is_file or not _NAME.fullmatch(name):
        raise BundleError(
            f"{folder}: {name!r} is not a regular file, or its name is not allowed in a bundle.",
            hint="Do not use the bundle; fetch it again.",
        )


def read_manifest(folder: Path) -> JsonObject:
    """Read a bundle's manifest, and check it against the schema."""
    try:
        document: JsonObject = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{folder}: {MANIFEST} cannot be read: {error}.") from error
    check_manifest(document)
    return document


def check_manifest(document: object) -> None:
    """Check a manifest against the schema."""
    from jsonschema import Draft202012Validator  # slow to import, and most commands only list bundles

    schema = json.loads(Path(__file__).with_name("manifest.schema.json").read_text("utf-8"))
    problems = sorted(Draft202012Validator(schema).iter_errors(document), key=lambda problem: problem.json_path)
    if problems:
        shown = "; ".join(f"{problem.json_path}: {problem.message[:200]}" for problem in problems[:3])
        raise BundleError(f"{MANIFEST} does not conform to its schema: {shown}.", hint="Do not use the bundle.")


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
                raise TypeError
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
            raise TypeError
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
