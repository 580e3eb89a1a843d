from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from storage.errors import ConfigurationError
from storage.trust import Signer, public_keys, signers_among
from tests.storage.bundle_files import pem, public_key_text

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes(range(start, start + 32))) for start in (0, 1))
CURVE = ec.generate_private_key(ec.SECP256R1())


@pytest.mark.slow
def test_keys_come_as_text_or_as_a_path(tmp_path: Path):
    assert Signer.of("") is None
    (tmp_path / "key.pem").write_text(pem(KEY, OTHER))
    for given in (pem(KEY, OTHER), str(tmp_path / "key.pem")):
        found = Signer.of(given, days=2)
        assert found is not None
        assert found.public == (KEY.public_key(), OTHER.public_key())
        assert found.valid.days == 2


@pytest.mark.slow
def test_a_wrong_key_is_reported_without_showing_it(tmp_path: Path):
    broken = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"
    other = CURVE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    for given in (broken, str(tmp_path / "none.pem"), other, pem(KEY) + broken, "-----BEGIN"):
        with pytest.raises(ConfigurationError) as caught:
            Signer.of(given)
        assert "c2VjcmV0" not in str(caught.value)
        assert given not in str(caught.value)


def test_a_wrong_public_key_is_reported(tmp_path: Path):
    (tmp_path / "private.pem").write_text(pem(KEY))
    (tmp_path / "other.pem").write_bytes(
        CURVE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    (tmp_path / "good.pem").write_text(public_key_text(KEY))
    for name in ("private.pem", "other.pem", "none.pem"):
        with pytest.raises(ConfigurationError, match=name):
            public_keys([tmp_path / "good.pem", tmp_path / name])


@pytest.mark.slow
def test_a_key_that_is_given_or_signs_twice_counts_once():
    ours, others = KEY.sign(b"message"), OTHER.sign(b"message")
    keys = [KEY.public_key(), OTHER.public_key(), KEY.public_key()]
    assert signers_among(keys, [ours, ours], b"message") == 1
    assert signers_among(keys, [ours, others], b"message") == 2
    assert signers_among(keys[:1], [others], b"message") == 0
    assert signers_among(keys, [ours, others], b"another") == 0
