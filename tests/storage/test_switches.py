"""Who switches while others switch: nothing that was reported is lost, and nothing is replaced that nobody saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from storage.bundles import BundleStore
from storage.errors import BundleError, ConflictError, StoreError
from storage.pointer import Pointer
from storage.root import StoreRoot, check_writable
from storage.seal import check_sums
from tests.storage.bundle_files import publish, signer_of, version

WORKLOAD = "word-lm"
KEY, OTHER = signer_of(), signer_of("others")
CURRENT = f"handoff/{WORKLOAD}/current.json"
s3 = pytest.param("s3", marks=pytest.mark.server)
s3_only = pytest.mark.parametrize("place", [s3], indirect=True)


@pytest.fixture(params=["local", s3])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "local" else request.getfixturevalue("s3_store")


@pytest.fixture
def bundles(place: str) -> BundleStore:
    """Two bundles, the second of them current."""
    found = BundleStore(place)
    for number in (1, 2):
        publish(found, number)
    return found


@pytest.fixture
def elsewhere(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., BundleStore]:
    """Open the same store as another host does: with a cache, and so with locks, of its own."""

    def opened(*arguments: Any) -> BundleStore:
        with monkeypatch.context() as patched:
            patched.setenv("NIGHTQUANT_CACHE", str(tmp_path / "another host"))
            found = BundleStore(place, *arguments)
            folder = found.root.lock_folder()
        monkeypatch.setattr(found.root, "lock_folder", lambda: folder)
        return found

    return opened


@pytest.fixture
def before_the_lock(monkeypatch: pytest.MonkeyPatch) -> Callable[[BundleStore, Callable[[], object]], None]:
    """Let something happen between what a caller of a store reads and the lock that it takes."""

    def interleave(bundles: BundleStore, other: Callable[[], object]) -> None:
        lock = bundles.root.lock

        def locked(name: str, **options: bool) -> Any:
            monkeypatch.setattr(bundles.root, "lock", lock)
            other()
            return lock(name, **options)

        monkeypatch.setattr(bundles.root, "lock", locked)

    return interleave


@pytest.fixture
def before_the_write(monkeypatch: pytest.MonkeyPatch) -> Callable[[BundleStore, Callable[[], object]], None]:
    """Let something happen between the request that reads a remote store's pointer and the one that replaces it."""

    def interleave(bundles: BundleStore, other: Callable[[], object]) -> None:
        files, others = bundles.root._files, iter([other])  # type: ignore[attr-defined]
        write = files.pipe_file

        def written(path: str, *arguments: Any, **options: Any) -> Any:
            if path.endswith(CURRENT):
                for first_time in others:
                    first_time()
            return write(path, *arguments, **options)

        monkeypatch.setattr(files, "pipe_file", written)

    return interleave


def state(bundles: BundleStore) -> tuple[str, tuple[str, ...], list[str]]:
    """What is current, what is withdrawn, and every switch."""
    pointer = bundles.pointer(WORKLOAD)
    assert pointer is not None
    return pointer.version, pointer.withdrawn, [f"{each.action} {each.version}" for each in pointer.history]


FIRST_TWO = [f"promote {version(1)}", f"promote {version(2)}"]


def roll_back(bundles: BundleStore, **options: str) -> Pointer:
    return bundles.roll_back(WORKLOAD, by="someone", reason="worse", **options)


def test_a_roll_back_withdraws_only_the_bundle_that_its_caller_read_as_current(
    bundles: BundleStore, elsewhere: Callable[[], BundleStore], before_the_lock: Callable[..., None]
) -> None:
    before_the_lock(bundles, lambda: publish(elsewhere(), 3))
    said = rf"is {version(3)} now \(promote by a test, .*while {version(2)} was current\."
    with pytest.raises(ConflictError, match=said):
        roll_back(bundles)
    assert state(bundles) == (version(3), (), [*FIRST_TWO, f"promote {version(3)}"])
    with pytest.raises(ConflictError, match=f"is {version(3)} now"):
        roll_back(bundles, replacing=version(2))
    assert roll_back(bundles, replacing=version(3)).withdrawn == (version(3),)


def test_of_two_roll_backs_of_the_same_bundle_one_is_done(
    bundles: BundleStore, elsewhere: Callable[[], BundleStore], before_the_lock: Callable[..., None]
) -> None:
    publish(bundles, 3)
    before_the_lock(bundles, lambda: roll_back(elsewhere()))
    with pytest.raises(ConflictError, match=rf"is {version(2)} now \(rollback by someone"):
        roll_back(bundles)
    assert state(bundles)[:2] == (version(2), (version(3),))


def test_a_promotion_by_hand_replaces_only_the_bundle_that_its_caller_read_as_current(
    bundles: BundleStore, elsewhere: Callable[[], BundleStore], before_the_lock: Callable[..., None]
) -> None:
    before_the_lock(bundles, lambda: publish(elsewhere(), 3))
    with pytest.raises(ConflictError, match=f"is {version(3)} now"):
        bundles.promote_by_hand(WORKLOAD, version(1), by="someone", reason="known to work")
    assert state(bundles)[0] == version(3)


@pytest.mark.slow
def test_a_night_replaces_only_the_bundle_that_it_compared_with_its_choice(bundles: BundleStore) -> None:
    for seen, was in ((version(1), f"{version(1)} was current"), (None, "there was no current bundle")):
        with pytest.raises(ConflictError, match=rf"is {version(2)} now.*while {was}\."):
            bundles.promote(WORKLOAD, version(1), by="a night", reason="fastest", replacing=seen)
    # Its choice is current already, whoever brought that about.
    assert bundles.promote(WORKLOAD, version(2), by="a night", reason="fastest", replacing=None).version == version(2)
    for entry in bundles.root.list("handoff"):
        if entry.name == CURRENT:
            bundles.root.delete(entry.name)
    with pytest.raises(ConflictError, match="has no current bundle now"):
        bundles.promote(WORKLOAD, version(1), by="a night", reason="fastest", replacing=version(2))
    assert bundles.pointer(WORKLOAD) is None


@s3_only
@pytest.mark.parametrize("other", ["roll back", "switch", "renewal"])
def test_of_two_hosts_that_switch_at_once_the_second_changes_nothing(
    other: str, place: str, elsewhere: Callable[..., BundleStore], before_the_write: Callable[..., None]
) -> None:
    bundles = BundleStore(place, KEY)
    for number in (1, 2):
        publish(bundles, number)

    def act() -> None:
        another = elsewhere(KEY)
        if other == "roll back":
            roll_back(another)
        elif other == "switch":
            publish(another, 3)
        else:
            another.renew(WORKLOAD)
        after.append(another.pointer(WORKLOAD))

    after: list[Pointer | None] = []
    before_the_write(bundles, act)
    with pytest.raises(ConflictError, match="changed while it was being replaced"):
        roll_back(bundles)
    assert [bundles.pointer(WORKLOAD)] == after


@pytest.mark.slow
def test_a_night_renews_only_the_bundle_that_it_judged(place: str) -> None:
    bundles = BundleStore(place, KEY)
    for number in (1, 2):
        publish(bundles, number)
    before = bundles.pointer(WORKLOAD)
    for judged in (1, 3):
        with pytest.raises(ConflictError, match=f"is {version(2)} now.*while {version(judged)} was current"):
            bundles.renew(WORKLOAD, version(judged))
    assert bundles.pointer(WORKLOAD) == before
    bundles.renew(WORKLOAD, version(2))
    assert bundles.pointer(WORKLOAD) != before


@s3_only
def test_only_a_person_continues_from_a_pointer_that_others_signed(
    place: str, elsewhere: Callable[..., BundleStore]
) -> None:
    bundles, other = BundleStore(place, KEY), elsewhere(OTHER)
    for number in (1, 2):
        publish(bundles, number)
    assert other.sign(WORKLOAD, version(1), check_sums(other.local_folder(WORKLOAD, version(1)))) is None
    with pytest.raises(BundleError, match="signed with another key"):
        other.promote(WORKLOAD, version(1), by="a night", reason="fastest", replacing=version(2))
    assert roll_back(other).signature is not None
    other.renew(WORKLOAD, version(1))


@pytest.mark.server
@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
@pytest.mark.parametrize("is_ignored", [True, False])
def test_a_store_without_conditional_writes_is_refused_before_a_night_begins(
    header: str, is_ignored: bool, s3_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    answer, name = DomainDispatcherApplication.__call__, f"HTTP_{header.upper().replace('-', '_')}"

    def call(self: Any, environment: Any, start: Any) -> list[bytes]:
        if environment.pop(name, None) is None or is_ignored:
            return list(answer(self, environment, start))
        start("501 Not Implemented", [("Content-Type", "application/xml")])
        return [b"<Error><Code>NotImplemented</Code><Message>A header is not implemented.</Message></Error>"]

    monkeypatch.setattr(DomainDispatcherApplication, "__call__", call)
    with pytest.raises(StoreError, match=rf"does not support the `{header}` header .*\. Use S3, another object store"):
        check_writable(s3_store)
    assert StoreRoot.of(s3_store).list(".probe") == []


RACER = textwrap.dedent(
    """
    import json, random, sys
    from storage.bundles import BundleStore
    from storage.errors import ConfigurationError, ConflictError

    place, who, times, *versions = sys.argv[1:]
    bundles, chance = BundleStore(place), random.Random(who)
    done = {}
    print("ready", flush=True)
    sys.stdin.readline()  # until all are
    for number in range(int(times)):
        reason, seen = f"{who} {number}", bundles.pointer("word-lm").version
        try:
            if chance.random() < 0.5:
                after = bundles.roll_back("word-lm", by=who, reason=reason, replacing=seen)
            else:
                after = bundles.promote_by_hand("word-lm", chance.choice(versions), by=who, reason=reason)
        except ConflictError:
            continue
        except ConfigurationError as error:
            if "does not have an earlier bundle" not in error.message:
                raise
            continue
        if after.history[-1].reason == reason:
            done[reason] = seen if after.history[-1].action == "rollback" else ""
    print(json.dumps(done))
    """
)


@pytest.mark.slow
def test_no_switch_of_simultaneous_processes_is_lost(place: str, bundles: BundleStore, tmp_path: Path) -> None:
    publish(bundles, 3)
    times = "60" if bundles.root.local else "10"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, place, who, times, *(version(number) for number in (1, 2, 3))],
            env=os.environ | {"NIGHTQUANT_CACHE": str(tmp_path / who)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for who in ("one", "two", "three")
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    told: dict[str, str] = {}
    for racer in racers:
        output, _ = racer.communicate(timeout=300)
        assert racer.returncode == 0
        told |= json.loads(output)
    pointer = bundles.pointer(WORKLOAD)
    assert pointer is not None
    assert told
    # Every switch that was reported happened once, and no other did.
    assert sorted(each.reason for each in pointer.history[3:]) == sorted(told)
    # Every roll-back left the very bundle that its caller had seen, and what is withdrawn follows from the history.
    for before, after in pairwise(pointer.history):
        if after.action == "rollback":
            assert before.version == told[after.reason]
    first = pointer.history[0]
    replayed = Pointer(workload=WORKLOAD, version=first.version, sha256sums=first.sha256sums, history=(first,))
    for switch in pointer.history[1:]:
        replayed = replayed.switched(switch)
    assert replayed == pointer
