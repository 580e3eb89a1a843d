from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import BundleError, ConfigurationError
from storage.pointer import Pointer, Switch, signed, stated
from storage.trust import Statement
from tests.storage.bundle_files import signer_of, version

KEYS = tuple(Ed25519PrivateKey.from_private_bytes(bytes(range(start, start + 32))) for start in range(3))
PUBLIC = tuple(key.public_key() for key in KEYS)
NOW = datetime.now(UTC).replace(microsecond=0)


def pointer(number: int = 1, *, workload: str = "word-lm", at: datetime = NOW, days: float = 30.0) -> Pointer:
    sums = f"{number:064x}"
    switch = Switch(action="promote", version=version(number), sha256sums=sums, at=at, by="a test", reason="x")
    made = Pointer(workload=workload, version=version(number), sha256sums=sums, history=(switch,))
    return signed(made, signer_of(KEYS[0], days=days), None, at)


def kept(folder: Path, made: Pointer) -> Path:
    (folder / "current.json").write_text(made.text())
    return folder / "current.json"


def test_what_is_current_is_stated_with_its_digest(tmp_path: Path):
    found = stated(
        kept(tmp_path, pointer(7)), "word-lm", PUBLIC[:1], min_version=version(1), max_age=timedelta(hours=1)
    )
    assert (found.version, found.sha256sums) == (version(7), f"{7:064x}")
    assert found.expires_at == NOW + timedelta(days=30)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (pointer(workload="resnet18"), "of resnet18, but the expected workload is word-lm"),
        (pointer(days=1e-9), "of word-lm expired at"),
        (pointer(at=NOW - timedelta(hours=3)), "is too old: it was signed at .* UTC, but the maximum age is 2 h"),
        (pointer().model_copy(update={"signed": None}), "is not signed"),
        (pointer().model_copy(update={"workload": "resnet18"}), ""),
    ],
    ids=["wrong workload", "expired", "too old", "no signature", "unsigned words"],
)
@pytest.mark.slow
def test_what_is_refused(made: Pointer, why: str, tmp_path: Path):
    path = kept(tmp_path, made)
    if why:
        with pytest.raises(BundleError, match=why):
            stated(path, "word-lm", PUBLIC[:1], max_age=timedelta(hours=2))
    else:  # what is beside the signed statement is not looked at
        assert stated(path, "word-lm", PUBLIC[:1], max_age=timedelta(hours=2)).workload == "word-lm"


@pytest.mark.slow
def test_a_bundle_of_an_earlier_night_than_asked_for_is_refused(tmp_path: Path):
    path = kept(tmp_path, pointer())
    for fresh_enough in ("2026-11-20", "2026-11-21", version(9)):
        stated(path, "word-lm", PUBLIC[:1], min_version=fresh_enough)
    with pytest.raises(BundleError, match="the minimum version is"):
        stated(path, "word-lm", PUBLIC[:1], min_version="2026-11-22")


def test_so_many_different_keys_must_have_signed(tmp_path: Path):
    one = pointer()
    assert one.signed is not None
    two = kept(tmp_path, one.model_copy(update={"signed": one.signed.cosigned(signer_of(KEYS[1]))}))
    stated(two, "word-lm", PUBLIC, threshold=2)
    stated(two, "word-lm", PUBLIC[1:])  # after a change of keys the first is not believed any more
    for keys, threshold in ((PUBLIC, 3), (PUBLIC[1:], 2), (PUBLIC[2:], 1)):
        with pytest.raises(BundleError, match="has valid signatures for only"):
            stated(two, "word-lm", keys, threshold=threshold)
    for keys, threshold in ((PUBLIC[:1] * 2, 2), ((), 1)):
        with pytest.raises(ConfigurationError, match="number of public keys"):
            stated(two, "word-lm", keys, threshold=threshold)


def test_one_key_that_signs_twice_is_no_second_signature(tmp_path: Path):
    document = json.loads(pointer().text())
    document["signed"]["signatures"] *= 2
    document["signed"]["signatures"][1]["keyid"] = "0" * 64
    (tmp_path / "current.json").write_text(json.dumps(document))
    with pytest.raises(BundleError, match="signatures for only 1 of the 3"):
        stated(tmp_path / "current.json", "word-lm", PUBLIC, threshold=2)


def test_an_older_statement_than_one_that_was_seen_is_refused(tmp_path: Path):
    state = tmp_path / "seen.json"
    older, newer = (pointer(number, at=NOW + timedelta(seconds=number)) for number in (1, 2))
    for made in (older, newer, newer, pointer(1, workload="resnet18")):
        stated(kept(tmp_path, made), made.workload, PUBLIC[:1], state=state)
    with pytest.raises(BundleError, match="is an old copy"):
        stated(kept(tmp_path, older), "word-lm", PUBLIC[:1], state=state)
    twin = pointer(3, at=NOW + timedelta(seconds=2))  # two machines in one second: neither is the newer one
    with pytest.raises(BundleError, match="is an old copy"):
        stated(kept(tmp_path, twin), "word-lm", PUBLIC[:1], state=state)
    stated(kept(tmp_path, newer), "word-lm", PUBLIC[:1], state=state)


def test_what_was_seen_is_not_forgotten_where_its_file_is_damaged(tmp_path: Path):
    state = tmp_path / "seen.json"
    for content in ("", "{", '{"word-lm": 1}', "[]"):
        state.write_text(content)
        with pytest.raises(ConfigurationError, match="Restore the file"):
            stated(kept(tmp_path, pointer()), "word-lm", PUBLIC[:1], state=state)


def test_a_longer_file_than_any_pointer_is_refused_unread(tmp_path: Path):
    path = kept(tmp_path, pointer())
    with path.open("r+b") as stream:
        stream.truncate(1 << 40)  # a hole, which takes no space on the disk
    with pytest.raises(BundleError, match="larger than any"):
        stated(path, "word-lm", PUBLIC[:1])


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path):
    with pytest.raises(BundleError, match="cannot be read: No such file or directory"):
        stated(tmp_path / "none.json", "word-lm", PUBLIC[:1])
    (tmp_path / "current.json").write_text("{}")
    with pytest.raises(BundleError, match=r"cannot be read: it is not a valid current\.json"):
        stated(tmp_path / "current.json", "word-lm", PUBLIC[:1])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("workload", ("resnet18", "zoo")),
        ("version", (version(4), version(6))),
        ("sha256sums", ("0" * 64, "f" * 64)),
        ("withdrawn", ((version(1),), (version(3),))),
    ],
)
def test_a_pointer_that_says_something_else_than_its_statement_is_refused(name: str, values: tuple[object, ...]):
    made = pointer(5).model_copy(update={"withdrawn": (version(2),)})
    for value in values:
        other = signed(made.model_copy(update={name: value}), signer_of(KEYS[0]), None, NOW)
        found = other.statement(PUBLIC[:1])
        other.check_says(found)
        with pytest.raises(BundleError, match="differs from its signed statement"):
            made.check_says(found)


def test_statements_of_one_second_are_numbered_on_from_it():
    made, before, serials = pointer(), None, []
    for _ in range(3):
        made = signed(made, signer_of(KEYS[0]), before, NOW)
        before = made.statement(PUBLIC[:1])
        serials.append(before.serial)
    assert serials == [int(NOW.timestamp()) + number for number in range(3)]


def test_the_envelope_is_written_as_its_standard_asks_for():
    document = json.loads(pointer().text())
    assert document["format"] == 1
    assert document["signed"].keys() == {"payload", "payloadType", "signatures"}
    assert pointer().text().endswith("}\n")


@pytest.mark.parametrize("content", ["", "{}", "[" * 100_000, '{"signed": ' * 5000, "\0", '{"format": 1e999}'])
@pytest.mark.slow
def test_what_is_no_pointer_is_refused(content: str, tmp_path: Path):
    (tmp_path / "current.json").write_text(content)
    for path in (tmp_path / "current.json", tmp_path / "none.json", tmp_path):
        with pytest.raises(BundleError):
            stated(path, "word-lm", PUBLIC[:1])


@given(data=st.data())
def test_no_changed_byte_changes_what_is_stated(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory):
    made = pointer()
    content = bytearray(made.text().encode())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_bytes(content)
    try:
        found = stated(path, "word-lm", PUBLIC[:1])
    except BundleError:
        return
    assert made.signed is not None
    assert found == Statement.model_validate_json(made.signed.payload)
