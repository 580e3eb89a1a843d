"""What a store with a key writes, and which pointers a run and a deployment team refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.bundles import BundleStore
from storage.errors import BundleError, ConfigurationError, StoreError
from storage.pointer import Pointer, Switch, read_current
from storage.seal import SIGNATURE, check_sums
from tests.storage.bundle_files import fill, promote, publish, signer_of, version

NOW = datetime.now(UTC).replace(microsecond=0)
PUBLIC = signer_of().key.public_key()


def pointer(number: int = 1, *, workload: str = "word-lm", days: float = 30.0, after: int = 0) -> Pointer:
    """A signed pointer to a bundle that only its number decides; its serial is higher than `after`."""
    sums = f"{number:064x}"
    switch = Switch(action="promote", version=version(number), sha256sums=sums, at=NOW, by="a test", reason="x")
    made = Pointer(workload=workload, version=version(number), sha256sums=sums, history=(switch,), serial=after)
    return made.signed(signer_of(days=days))


def kept(folder: Path, made: Pointer) -> Path:
    (folder / "current.json").write_text(made.text())
    return folder / "current.json"


def test_a_signed_pointer_is_read_back_as_it_was_written(tmp_path: Path):
    before = datetime.now(UTC).replace(microsecond=0)
    found = read_current(kept(tmp_path, pointer(7)), "word-lm", PUBLIC)
    assert (found.version, found.sha256sums) == (version(7), f"{7:064x}")
    assert found.expires_at is not None
    assert before <= found.expires_at - timedelta(days=30) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (pointer(workload="resnet18"), "belongs to the workload resnet18"),
        (pointer(days=1e-9), "expired at"),
        (pointer().model_copy(update={"expires_at": NOW + timedelta(days=99)}), "was changed"),
        (pointer().model_copy(update={"sha256sums": "0" * 64}), "was changed"),
        (pointer().model_copy(update={"signature": None}), "is not signed"),
        (pointer().signed(signer_of("others")), "signed with another key"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_pointers_are_refused(made: Pointer, why: str, tmp_path: Path):
    with pytest.raises(BundleError, match=why):
        read_current(kept(tmp_path, made), "word-lm", PUBLIC)


def test_a_pointer_older_than_the_last_one_read_is_refused(tmp_path: Path):
    state = tmp_path / "seen.json"
    older, newer = pointer(1), pointer(2, after=2**40)
    for made in (older, newer, newer, pointer(1, workload="resnet18")):
        read_current(kept(tmp_path, made), made.workload, PUBLIC, state)
    with pytest.raises(BundleError, match="is an old copy"):
        read_current(kept(tmp_path, older), "word-lm", PUBLIC, state)
    read_current(kept(tmp_path, newer), "word-lm", PUBLIC, state)


@pytest.mark.parametrize("content", ["", "{}", "[" * 100_000, '{"history": ' * 5000, "\0", '{"format": 1e999}'])
def test_an_invalid_pointer_is_refused(content: str, tmp_path: Path):
    (tmp_path / "current.json").write_text(content)
    for path in (tmp_path / "current.json", tmp_path / "none.json", tmp_path):
        with pytest.raises(StoreError):
            read_current(path, "word-lm", PUBLIC)


MADE = pointer()  # once, because each signature has its own length


@given(data=st.data())
def test_no_changed_byte_changes_the_result_of_a_read(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory):
    made = MADE
    content = bytearray(made.text().encode())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_bytes(content)
    try:
        found = read_current(path, "word-lm", PUBLIC)
    except (BundleError, StoreError):
        return
    assert found.message() == made.message()


@pytest.fixture
def bundles(tmp_path: Path) -> BundleStore:
    return BundleStore(tmp_path / "store", signer_of())


@pytest.fixture
def current(tmp_path: Path) -> Path:
    return tmp_path / "store/handoff/word-lm/current.json"


def test_every_switch_and_every_renewal_is_signed_with_a_higher_serial(bundles: BundleStore, current: Path):
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
        found.append(read_current(current, "word-lm", PUBLIC))
    assert [each.version for each in found] == [version(number) for number in (1, 2, 2, 2, 1, 1, 2)]
    serials = [each.serial for each in found]
    assert serials == sorted(set(serials))
    assert [each.withdrawn for each in found][-3:] == [(version(2),), (version(2),), ()]
    assert [switch.version for switch in found[-1].history] == [version(number) for number in (1, 2, 1, 2)]


def test_a_store_without_a_key_is_not_signed(tmp_path: Path):
    bundles = BundleStore(tmp_path)
    publish(bundles, 1)
    bundles.renew("word-lm")
    document = json.loads((tmp_path / "handoff/word-lm/current.json").read_bytes())
    assert not {"signature", "expires_at"} & document.keys()


@pytest.mark.slow
def test_signed_content_cannot_be_changed_without_the_key(bundles: BundleStore, current: Path):
    for number in (1, 2):
        publish(bundles, number)
    before = current.read_bytes()
    keyless = BundleStore(bundles.root)
    with pytest.raises(ConfigurationError, match="NIGHTQUANT_SIGNING_KEY"):
        keyless.roll_back("word-lm", by="someone", reason="worse")
    with pytest.raises(ConfigurationError, match="NIGHTQUANT_SIGNING_KEY"):
        publish(keyless, 3)
    assert current.read_bytes() == before


@pytest.mark.parametrize("planted", [None, "others"], ids=["unsigned", "signed by others"])
@pytest.mark.slow
def test_a_bundle_that_others_put_there_is_not_pointed_at(planted: str | None, bundles: BundleStore, tmp_path: Path):
    publish(bundles, 1)
    others = BundleStore(tmp_path / "others", signer_of(planted) if planted else None)
    publish(others, 2)
    others.local_folder("word-lm", version(2)).rename(tmp_path / "store/handoff/word-lm" / version(2))
    assert (bundles.is_signed("word-lm", version(1)), bundles.is_signed("word-lm", version(2))) == (True, False)
    for switch in (partial(bundles.promote, replacing=version(1)), bundles.promote_by_hand, bundles.roll_back):
        with pytest.raises(BundleError, match="nightquant handoff sign"):
            switch("word-lm", version(2), by="someone", reason="x")
    found = bundles.pointer("word-lm")
    assert found is not None
    assert found.version == version(1)


def _edit(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def edited(content: str) -> str:
        document = json.loads(content)
        change(document)
        return json.dumps(document)

    return edited


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_edit(lambda document: document.update(version=version(1))), "was changed"),
        (_edit(lambda document: document.update(withdrawn=[])), "was changed"),
        (_edit(lambda document: document.pop("signature")), "is not signed"),
        (None, "is an old copy"),
    ],
    ids=["another version", "not withdrawn", "not signed", "older"],
)
def test_a_run_does_not_sign_a_pointer_that_others_changed(
    change: Callable[[str], str] | None, why: str, bundles: BundleStore, current: Path
):
    publish(bundles, 1)
    old = current.read_text()
    publish(bundles, 2)
    bundles.roll_back("word-lm", by="someone", reason="worse")
    publish(bundles, 3)
    newest = current.read_text()
    changed = old if change is None else change(newest)
    current.write_text(changed)
    for act in (partial(bundles.renew, "word-lm"), partial(promote, bundles, version(2))):
        with pytest.raises(BundleError, match=f"{why}.*nightquant handoff sign word-lm"):
            act()
    assert current.read_text() == changed
    current.write_text(newest)
    with pytest.raises(BundleError, match="signed with another key"):
        BundleStore(bundles.root, signer_of("others")).renew("word-lm")
    bundles.renew("word-lm")
    current.unlink()
    with pytest.raises(BundleError, match="is not signed"):
        promote(bundles, version(2))


def test_only_a_person_renews_an_expired_pointer(tmp_path: Path):
    expiring, bundles = BundleStore(tmp_path, signer_of(days=1e-9)), BundleStore(tmp_path, signer_of())
    publish(expiring, 1)
    for act in (partial(bundles.renew, "word-lm"), partial(promote, bundles, version(1))):
        with pytest.raises(BundleError, match="expired at"):
            act()
    bundles.promote_by_hand("word-lm", version(1), by="someone", reason="known to work")
    bundles.renew("word-lm")


def test_a_store_from_before_the_key_is_signed_by_hand_or_by_its_next_new_bundle(tmp_path: Path):
    publish(BundleStore(tmp_path), 1)
    bundles = BundleStore(tmp_path, signer_of())
    with pytest.raises(BundleError, match="is not signed"):
        bundles.renew("word-lm")
    sums = check_sums(bundles.local_folder("word-lm", version(1)))
    with pytest.raises(BundleError, match="has changed since"):
        bundles.sign("word-lm", version(1), "0" * 64)
    assert bundles.sign("word-lm", version(1), sums) == bundles.pointer("word-lm")
    assert check_sums(bundles.local_folder("word-lm", version(1))) == sums
    bundles.renew("word-lm")

    publish(BundleStore(tmp_path), 1, "resnet18")
    publish(bundles, 2, "resnet18")
    assert bundles.sign("resnet18", version(1), sums) is None  # another is current; this one may be gone back to
    assert bundles.roll_back("resnet18", by="someone", reason="worse").version == version(1)


def test_a_replaced_bundle_is_not_signed_again_although_it_has_a_signature(bundles: BundleStore):
    publish(bundles, 1)
    folder = bundles.local_folder("word-lm", version(1))
    shutil.rmtree(folder)
    folder.mkdir()
    fill(folder, b"evil")
    (folder / SIGNATURE).write_bytes(signer_of().sign_bundle(folder))
    with pytest.raises(BundleError, match="has changed since"):
        bundles.renew("word-lm")


@pytest.mark.parametrize("number", [1, 2], ids=["earlier", "later"])
def test_signing_a_bundle_that_is_not_current_does_not_sign_the_pointer(
    number: int, bundles: BundleStore, current: Path
):
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
    bundles = BundleStore(s3_store, signer_of())
    publish(bundles, 1)
    before = bundles.root.read("handoff/word-lm/current.json")
    bundles.renew("word-lm")
    with bundles.draft() as folder:
        fill(folder, b"unsigned")
        bundles.publish(folder, "word-lm", version(2))
    with pytest.raises(BundleError, match=f"{SIGNATURE} is missing"):
        promote(bundles, version(2))
    bundles.sign("word-lm", version(2), check_sums(bundles.local_folder("word-lm", version(2))))
    assert (bundles.local_folder("word-lm", version(2)) / SIGNATURE).is_file()
    promote(bundles, version(2))
    bundles.root.put("handoff/word-lm/current.json", before)
    with pytest.raises(BundleError, match="old copy"):
        bundles.renew("word-lm")
