from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.bundles import BundleStore
from storage.errors import BundleError, ConfigurationError, ConflictError, StoreError
from storage.seal import check_sums
from tests.storage.bundle_files import fill, promote, publish, version


@pytest.fixture
def bundles(tmp_path: Path) -> BundleStore:
    return BundleStore(tmp_path / "store")


@pytest.mark.slow
def test_a_published_bundle_is_complete_and_current(bundles: BundleStore):
    publish(bundles, 1)
    current = bundles.pointer("word-lm")
    assert current is not None
    assert current.version == version(1)
    assert check_sums(bundles.local_folder("word-lm", version(1))) == current.sha256sums
    assert [entry.is_current for entry in bundles.entries("word-lm")] == [True]


def test_an_error_while_filling_leaves_nothing(bundles: BundleStore, tmp_path: Path):
    def fail(folder: Path) -> None:
        fill(folder)
        raise OSError("the disk is full")

    with pytest.raises(StoreError, match="full"), bundles.draft() as folder:
        fail(folder)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_version_is_written_once(bundles: BundleStore):
    publish(bundles, 1)
    before = (bundles.local_folder("word-lm", version(1)) / "file-0.bin").read_bytes()
    with bundles.draft() as folder:
        fill(folder, b"something else")
        assert bundles.publish(folder, "word-lm", version(1)) is False
    assert (bundles.local_folder("word-lm", version(1)) / "file-0.bin").read_bytes() == before


def test_rolling_back_goes_one_back_each_time_and_records_who_and_why(bundles: BundleStore):
    for number in (1, 2, 3):
        publish(bundles, number)
    assert bundles.roll_back("word-lm", by="someone", reason="worse").version == version(2)
    after = bundles.roll_back("word-lm", by="someone", reason="worse still")
    assert after.version == version(1)
    assert after.withdrawn == (version(2), version(3))
    assert [(switch.action, switch.version, switch.by) for switch in after.history] == [
        ("promote", version(1), "a test"),
        ("promote", version(2), "a test"),
        ("promote", version(3), "a test"),
        ("rollback", version(2), "someone"),
        ("rollback", version(1), "someone"),
    ]
    assert after.history[-1].reason == "worse still"
    with pytest.raises(ConfigurationError, match="not have an earlier bundle"):
        bundles.roll_back("word-lm", by="someone", reason="on and on")


def test_a_withdrawn_bundle_is_not_promoted_again_until_someone_goes_back_to_it(bundles: BundleStore):
    publish(bundles, 1)
    publish(bundles, 2)
    bundles.roll_back("word-lm", by="someone", reason="worse")
    assert promote(bundles, version(2)).version == version(1)
    after = bundles.roll_back("word-lm", version(2), by="someone", reason="it was the data")
    assert after.version == version(2)
    assert after.withdrawn == (version(1),)


def test_promoting_by_hand_is_recorded_as_such_and_withdraws_nothing(bundles: BundleStore):
    publish(bundles, 1)
    publish(bundles, 2)
    after = bundles.promote_by_hand("word-lm", version(1), by="someone", reason="known to work")
    assert (after.version, after.withdrawn) == (version(1), ())
    last = after.history[-1]
    assert (last.action, last.version, last.by, last.reason) == (
        "promote-by-hand", version(1), "someone", "known to work",
    )  # fmt: skip
    assert promote(bundles, version(2)).version == version(2)


def test_every_bundle_is_listed_with_its_place_in_the_history(bundles: BundleStore):
    for number in (1, 2, 3):
        publish(bundles, number)
    bundles.roll_back("word-lm", by="someone", reason="worse")
    publish(bundles, 4, "resnet18")
    for workload in ("word-lm", None):
        found = [(entry.version, entry.is_current, entry.is_withdrawn) for entry in bundles.entries(workload)]
        assert found[-3:] == [(version(1), False, False), (version(2), True, False), (version(3), False, True)]


def test_a_bundle_that_was_tampered_with_does_not_become_current(bundles: BundleStore):
    publish(bundles, 1)
    publish(bundles, 2)
    victim = bundles.local_folder("word-lm", version(1)) / "file-0.bin"
    victim.chmod(0o644)
    victim.write_bytes(b"evil")
    with pytest.raises(BundleError, match=r"file-0\.bin"):
        bundles.roll_back("word-lm", by="someone", reason="worse")
    with pytest.raises(BundleError, match=r"file-0\.bin"):
        bundles.promote_by_hand("word-lm", version(1), by="someone", reason="known to work")
    current = bundles.pointer("word-lm")
    assert current is not None
    assert current.version == version(2)


@pytest.mark.parametrize("name", ["../word-lm", "", ".tmp", "a/b"])
def test_names_that_could_leave_the_folder_are_refused(name: str, bundles: BundleStore):
    publish(bundles, 1)
    calls: list[Callable[[], object]] = [
        lambda: bundles.pointer(name),
        lambda: bundles.versions(name),
        lambda: bundles.require("word-lm", name or "../x"),
        lambda: bundles.roll_back(name, by="x", reason="y"),
        lambda: bundles.promote_by_hand(name, version(1), by="x", reason="y"),
        lambda: bundles.local_folder("word-lm", name or ".."),
    ]
    with bundles.draft() as folder:
        fill(folder)
        calls += [
            lambda: bundles.publish(folder, name, version(1)),
            lambda: bundles.publish(folder, "word-lm", name),
        ]
        for call in calls:
            with pytest.raises(ConfigurationError):
                call()


def test_unknown_workloads_and_versions_are_reported_with_the_existing_ones(bundles: BundleStore):
    publish(bundles, 1)
    with pytest.raises(ConfigurationError, match="word-lm"):
        bundles.require("resnet18")
    with pytest.raises(ConfigurationError, match=version(1)):
        bundles.require("word-lm", version(2))


@pytest.mark.parametrize("content", ["", '{"workload": "word-lm"}'])
@pytest.mark.slow
def test_a_damaged_pointer_is_reported_and_not_overwritten(content: str, bundles: BundleStore, tmp_path: Path):
    publish(bundles, 1)
    pointer = tmp_path / "store/handoff/word-lm/current.json"
    pointer.write_text(content)
    with pytest.raises(StoreError, match="damaged"):
        bundles.pointer("word-lm")
    with pytest.raises(StoreError, match="damaged"):
        publish(bundles, 2)
    assert pointer.read_text() == content


def test_publishers_side_by_side_lose_no_switch(bundles: BundleStore):
    def publish_and_insist(number: int) -> None:
        while True:
            try:
                publish(bundles, number)
            except ConflictError:
                continue  # another one was quicker: its bundle is seen the next time
            return

    threads = [threading.Thread(target=publish_and_insist, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    current = bundles.pointer("word-lm")
    assert current is not None
    assert sorted(switch.version for switch in current.history) == [version(number) for number in range(8)]
    assert len(bundles.versions("word-lm")) == 8


@pytest.mark.server
def test_a_store_without_a_folder_on_this_host_keeps_bundles_too(s3_store: str):
    bundles = BundleStore(s3_store)
    publish(bundles, 1)
    publish(bundles, 2)
    assert bundles.versions("word-lm") == [version(1), version(2)]
    with bundles.draft() as folder:
        fill(folder, b"other")
        assert bundles.publish(folder, "word-lm", version(1)) is False
    after = bundles.roll_back("word-lm", by="someone", reason="worse")
    assert after.version == version(1)
    assert check_sums(bundles.local_folder("word-lm", version(1))) == after.sha256sums
    bundles.root.put(f"handoff/word-lm/{version(1)}/sub/file", b"more")
    with pytest.raises(BundleError, match="not a regular file"):
        bundles.local_folder("word-lm", version(1))
    bundles.root.put(f"handoff/word-lm/{version(2)}/file-0.bin", b"evil")
    with pytest.raises(BundleError) as raised:
        bundles.local_folder("word-lm", version(2))
    assert raised.value.message.startswith(f"{bundles.root.uri(f'handoff/word-lm/{version(2)}')}: ")
    # Files without their list are an upload that was cut off, not a bundle.
    bundles.root.put(f"handoff/word-lm/{version(3)}/file-0.bin", b"half")
    assert bundles.versions("word-lm") == [version(1), version(2)]
