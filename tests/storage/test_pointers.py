"""What a store with a key writes, and what it takes for its own after others have written to it."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from storage.bundles import BundleStore
from storage.errors import BundleError, ConfigurationError, ConflictError
from storage.seal import SIGNATURE, check_sums, sign
from storage.trust import Statement
from tests.storage.bundle_files import fill, promote, publish, signer_of, version

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes(range(start, start + 32))) for start in (0, 1))


@pytest.fixture
def bundles(tmp_path: Path) -> BundleStore:
    return BundleStore(tmp_path / "store", signer_of(KEY))


@pytest.fixture
def current(tmp_path: Path) -> Path:
    return tmp_path / "store/handoff/word-lm/current.json"


def statement(bundles: BundleStore, *keys: Ed25519PrivateKey, threshold: int = 1) -> Statement:
    pointer = bundles.pointer("word-lm")
    assert pointer is not None
    found = pointer.statement([key.public_key() for key in keys or (KEY,)], threshold)
    pointer.check_says(found)
    return found


def test_every_switch_and_every_renewal_is_signed_with_a_higher_serial(bundles: BundleStore):
    found = []
    for change in (
        lambda: publish(bundles, 1),
        lambda: publish(bundles, 2),
        lambda: promote(bundles, version(2), reason="it is the same"),
        lambda: bundles.renew("word-lm"),
        lambda: bundles.roll_back("word-lm", by="someone", reason="worse"),
        lambda: promote(bundles, version(2), reason="it was withdrawn"),
        lambda: bundles.promote_by_hand("word-lm", version(2), by="someone", reason="it was the data"),
    ):
        change()
        found.append(statement(bundles))
    assert [each.version for each in found] == [version(number) for number in (1, 2, 2, 2, 1, 1, 2)]
    serials = [each.serial for each in found]
    assert serials == sorted(set(serials))
    assert [each.withdrawn for each in found][-3:] == [(version(2),), (version(2),), ()]
    pointer = bundles.pointer("word-lm")
    assert pointer is not None
    assert [switch.version for switch in pointer.history] == [version(number) for number in (1, 2, 1, 2)]


def test_a_store_without_a_key_stays_as_it_was(tmp_path: Path):
    bundles = BundleStore(tmp_path)
    publish(bundles, 1)
    bundles.renew("word-lm")
    assert "signed" not in json.loads((tmp_path / "handoff/word-lm/current.json").read_bytes())


@pytest.mark.slow
def test_who_has_no_key_cannot_change_what_is_signed(bundles: BundleStore, tmp_path: Path, current: Path):
    for number in (1, 2):
        publish(bundles, number)
    before = current.read_bytes()
    keyless = BundleStore(tmp_path / "store")
    with pytest.raises(ConfigurationError, match="NIGHTQUANT_SIGNING_KEY"):
        keyless.roll_back("word-lm", by="someone", reason="worse")
    with pytest.raises(ConfigurationError, match="NIGHTQUANT_SIGNING_KEY"):
        publish(keyless, 3)
    assert current.read_bytes() == before


@pytest.mark.parametrize("planted", ["unsigned", "signed by others"])
@pytest.mark.slow
def test_a_bundle_that_others_put_there_is_not_pointed_at(planted: str, bundles: BundleStore, tmp_path: Path):
    publish(bundles, 1)
    others = BundleStore(tmp_path / "others", signer_of(OTHER) if planted == "signed by others" else None)
    publish(others, 2)
    others.local_folder("word-lm", version(2)).rename(tmp_path / "store/handoff/word-lm" / version(2))
    assert (bundles.is_signed("word-lm", version(1)), bundles.is_signed("word-lm", version(2))) == (True, False)
    for switch in (partial(bundles.promote, replacing=version(1)), bundles.promote_by_hand, bundles.roll_back):
        with pytest.raises(BundleError, match="sign") as raised:
            switch("word-lm", version(2), by="someone", reason="x")
        assert f"nightquant handoff sign word-lm {version(2)}" in (raised.value.hint or "")
    assert statement(bundles).version == version(1)


def test_a_night_does_not_vouch_for_what_others_made_of_the_pointer(bundles: BundleStore, current: Path):
    publish(bundles, 1)
    old = current.read_text()
    publish(bundles, 2)
    bundles.roll_back("word-lm", by="someone", reason="worse")
    publish(bundles, 3)
    newest = current.read_text()
    other_version = newest.replace(f'"version": "{version(3)}",\n "sha', f'"version": "{version(1)}",\n "sha')
    taken_back = newest.replace(f' "withdrawn": [\n  "{version(2)}"\n ],\n', "")
    stripped = json.dumps({name: value for name, value in json.loads(newest).items() if name != "signed"})
    foreign = BundleStore(bundles.root, signer_of(OTHER))
    for changed, why in (
        (old, "is an old copy"),
        (other_version, "differs from its signed statement"),
        (taken_back, "differs from its signed statement"),
        (stripped, "was signed before, but is no longer signed"),
    ):
        assert changed != newest
        current.write_text(changed)
        with pytest.raises(BundleError, match=why) as raised:
            bundles.renew("word-lm")
        assert "nightquant handoff sign word-lm" in (raised.value.hint or "")
        with pytest.raises(BundleError, match="nightquant handoff sign word-lm"):
            promote(bundles, version(2))
        assert current.read_text() == changed
    current.write_text(newest)
    with pytest.raises(BundleError, match="has valid signatures for only 0"):
        foreign.renew("word-lm")
    bundles.renew("word-lm")
    current.unlink()
    with pytest.raises(BundleError, match="but is no longer signed"):
        promote(bundles, version(2))


def test_what_has_expired_is_not_renewed_by_itself(tmp_path: Path):
    bundles = BundleStore(tmp_path, signer_of(KEY, days=1e-9))
    publish(bundles, 1)
    with pytest.raises(BundleError, match="of word-lm expired at"):
        bundles.renew("word-lm")
    # One that a night promotes was made by that night.
    assert promote(bundles, version(1)).version == version(1)


def test_an_old_store_is_signed_by_hand_or_by_its_next_new_bundle(tmp_path: Path):
    publish(BundleStore(tmp_path), 1)
    bundles = BundleStore(tmp_path, signer_of(KEY))
    with pytest.raises(BundleError, match="not signed yet"):
        bundles.renew("word-lm")
    sums = check_sums(bundles.local_folder("word-lm", version(1)))
    for other in ("0" * 64, "f" * 64):
        with pytest.raises(BundleError, match="changed while"):
            bundles.sign("word-lm", version(1), other)
    assert bundles.sign("word-lm", version(1), sums) == bundles.pointer("word-lm")
    assert statement(bundles).sha256sums == sums
    assert check_sums(bundles.local_folder("word-lm", version(1))) == sums
    bundles.renew("word-lm")

    publish(BundleStore(tmp_path), 1, "resnet18")
    publish(bundles, 2, "resnet18")
    assert bundles.sign("resnet18", version(1), sums) is None  # another is current; this one may be gone back to
    assert bundles.roll_back("resnet18", by="someone", reason="worse").version == version(1)


def test_keys_change_without_a_day_on_which_nobody_is_believed(tmp_path: Path):
    old, both, new = (BundleStore(tmp_path, signer_of(*keys)) for keys in ((KEY,), (OTHER, KEY), (OTHER,)))
    publish(old, 1)
    both.renew("word-lm")
    for key in (KEY, OTHER):
        assert statement(both, key).version == version(1)
    assert statement(both, KEY, OTHER, threshold=2).version == version(1)
    with pytest.raises(BundleError, match="signature"):  # the bundle's own is still the old key's
        new.renew("word-lm")
    new.sign("word-lm", version(1), check_sums(new.local_folder("word-lm", version(1))))
    new.renew("word-lm")
    with pytest.raises(BundleError, match="has valid signatures for only 0"):
        statement(new, KEY)


def test_another_machine_adds_its_signature_to_the_same_statement(bundles: BundleStore, current: Path):
    publish(bundles, 1)
    first, second = statement(bundles), BundleStore(bundles.root, signer_of(OTHER))
    cosign = partial(second.pointers.cosign, "word-lm", sha256sums=first.sha256sums)
    with pytest.raises(BundleError, match="has valid signatures for only 0"):
        cosign([OTHER.public_key()])
    cosign([KEY.public_key()])
    assert statement(bundles, KEY, OTHER, threshold=2) == first
    current.write_text(current.read_text().replace(version(1), version(2)))
    with pytest.raises(BundleError, match="differs from its signed statement"):
        cosign([KEY.public_key()])


def test_a_signature_is_not_added_for_a_bundle_that_nobody_verified(bundles: BundleStore, current: Path):
    publish(bundles, 1)
    second, verified = BundleStore(bundles.root, signer_of(OTHER)), statement(bundles).sha256sums
    for number in (2, 3, 4):
        publish(bundles, number)
        before = current.read_bytes()
        with pytest.raises(ConflictError, match=f"is {version(number)} now"):
            second.pointers.cosign("word-lm", [KEY.public_key()], verified)
        assert current.read_bytes() == before


def test_what_nobody_signed_is_not_cosigned(bundles: BundleStore):
    cosign = partial(bundles.pointers.cosign, "word-lm", [KEY.public_key()], "0" * 64)
    with pytest.raises(BundleError, match="not signed yet"):
        cosign()
    publish(BundleStore(bundles.root), 1)
    with pytest.raises(BundleError, match="not signed yet"):
        cosign()


def test_a_bundle_is_signed_with_the_first_of_two_keys_and_the_pointer_with_both(tmp_path: Path):
    publish(BundleStore(tmp_path), 1)
    both, first, second = (BundleStore(tmp_path, signer_of(*keys)) for keys in ((KEY, OTHER), (KEY,), (OTHER,)))
    both.sign("word-lm", version(1), check_sums(both.local_folder("word-lm", version(1))))
    assert (first.is_signed("word-lm", version(1)), second.is_signed("word-lm", version(1))) == (True, False)
    assert statement(both, KEY, OTHER, threshold=2).version == version(1)


# Their digests are below and above those of the bundles that they replace.
@pytest.mark.parametrize("content", [b"evil", b"planted"])
def test_a_bundle_that_was_replaced_is_not_vouched_for_although_it_is_signed(
    content: bytes, bundles: BundleStore, tmp_path: Path
):
    publish(bundles, 1)
    folder = bundles.local_folder("word-lm", version(1))
    shutil.rmtree(folder)
    folder.mkdir()
    fill(folder, content)
    sign(folder, KEY)
    with pytest.raises(BundleError, match="changed"):
        bundles.renew("word-lm")


@pytest.mark.parametrize("number", [1, 2], ids=["earlier", "later"])
def test_signing_what_is_not_current_signs_the_bundle_alone(number: int, bundles: BundleStore, current: Path):
    for each in (1, 2):
        publish(bundles, each)
    if number == 2:
        bundles.roll_back("word-lm", by="someone", reason="worse")
    before = current.read_bytes()
    (bundles.local_folder("word-lm", version(number)) / SIGNATURE).unlink()
    assert not bundles.is_signed("word-lm", version(number))
    sums = check_sums(bundles.local_folder("word-lm", version(number)))
    assert bundles.sign("word-lm", version(number), sums) is None
    assert bundles.is_signed("word-lm", version(number))
    assert current.read_bytes() == before
    current.unlink()
    assert bundles.sign("word-lm", version(number), sums) is None


@pytest.mark.server
def test_an_object_store_is_signed_as_a_folder_is(s3_store: str):
    bundles = BundleStore(s3_store, signer_of(KEY))
    publish(bundles, 1)
    before = bundles.root.read("handoff/word-lm/current.json")
    bundles.renew("word-lm")
    with bundles.draft() as folder:
        fill(folder, b"unsigned")
        bundles.publish(folder, "word-lm", version(2))
    with pytest.raises(BundleError, match="not signed"):
        promote(bundles, version(2))
    sums = check_sums(bundles.local_folder("word-lm", version(2)))
    bundles.sign("word-lm", version(2), sums)
    assert (bundles.local_folder("word-lm", version(2)) / SIGNATURE).is_file()
    promote(bundles, version(2))
    bundles.root.put("handoff/word-lm/current.json", before)
    with pytest.raises(BundleError, match="old copy"):
        bundles.renew("word-lm")


def test_what_is_not_current_is_neither_renewed_nor_made_current_by_signing_it(bundles: BundleStore):
    with pytest.raises(
        ConflictError, match=f"no current bundle now, but this change was requested while {version(1)} was current"
    ):
        bundles.renew("word-lm", version(1))
    publish(bundles, 1)
    with bundles.draft() as folder:
        fill(folder, b"later")
        sums = check_sums(folder)
        bundles.publish(folder, "word-lm", version(2))
    assert bundles.sign("word-lm", version(2), sums) is None
    assert statement(bundles).version == version(1)
    with pytest.raises(ConflictError, match="while there was no current bundle"):
        bundles.promote("word-lm", version(2), by="a night", reason="fastest", replacing=None)
