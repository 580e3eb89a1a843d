"""A bundle's copy that the processes of a host share: whole at every moment, and never exchanged under its readers."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.bundles import BundleStore
from storage.errors import BundleError
from storage.seal import SIGNATURE, check_sums
from tests.storage.bundle_files import publish, signer_of, version

pytestmark = pytest.mark.server
LOCATION = f"handoff/word-lm/{version(1)}"


@pytest.fixture
def bundles(s3_store: str) -> BundleStore:
    found = BundleStore(s3_store)
    publish(found, 1)
    return found


def copied(bundles: BundleStore) -> Path:
    return bundles.local_folder("word-lm", version(1))


def inodes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (folder, *folder.iterdir())}


def test_a_copy_stays_as_it_is_for_those_who_read_it(bundles: BundleStore) -> None:
    folder = copied(bundles)
    before = inodes(folder)
    assert copied(BundleStore(bundles.root.url)) == folder
    assert inodes(folder) == before


def test_a_copy_that_another_process_makes_meanwhile_stays(
    bundles: BundleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, made = bundles.opened, []

    @contextmanager
    def slowly(location: str) -> Iterator[Path]:
        with opened(location) as copy:
            other = copied(BundleStore(bundles.root.url))
            made.append((other, inodes(other)))
            yield copy

    monkeypatch.setattr(bundles, "opened", slowly)
    folder = copied(bundles)
    assert [(folder, inodes(folder))] == made


def _change(folder: Path) -> None:
    (folder / "file-0.bin").write_bytes(b"flipped")


def _truncate(folder: Path) -> None:
    (folder / "SHA256SUMS").write_bytes(b"")


def _halve(folder: Path) -> None:
    for path in [*folder.iterdir()][:2]:
        path.unlink()


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("damage", [_change, _truncate, _halve, _empty])
def test_a_damaged_copy_is_made_again(damage: Callable[[Path], None], bundles: BundleStore) -> None:
    sums = check_sums(copied(bundles))
    damage(copied(bundles))
    assert check_sums(copied(bundles)) == sums


def test_a_damaged_bundle_is_refused_although_there_is_a_whole_copy_of_it(bundles: BundleStore) -> None:
    folder = copied(bundles)
    bundles.root.put(f"{LOCATION}/file-0.bin", b"flipped")
    with pytest.raises(BundleError, match=rf"^{bundles.root.uri(LOCATION)}: file-0\.bin was changed\."):
        copied(bundles)
    check_sums(folder)
    publish(bundles, 2)
    with pytest.raises(BundleError, match=rf"^{bundles.root.uri(LOCATION)}: file-0\.bin was changed\."):
        bundles.roll_back("word-lm", by="someone", reason="worse")


def test_a_later_signature_is_in_the_copies_that_are_made_later(bundles: BundleStore) -> None:
    unsigned = copied(bundles)
    signing = BundleStore(bundles.root, signer_of())
    signing.sign("word-lm", version(1), check_sums(unsigned))
    signature = bundles.root.read(f"{LOCATION}/{SIGNATURE}")
    assert (copied(bundles) / SIGNATURE).read_bytes() == signature
    assert not (unsigned / SIGNATURE).exists()
    (copied(bundles) / SIGNATURE).write_bytes(bytes(64))
    assert (copied(bundles) / SIGNATURE).read_bytes() == signature


READER = textwrap.dedent(
    """
    import sys
    from storage.bundles import BundleStore
    from storage.seal import check_sums

    place, version = sys.argv[1:]
    bundles = BundleStore(place)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(80):
        folder = bundles.local_folder("word-lm", version)
        for _ in range(5):
            check_sums(folder)
    """
)


@pytest.mark.slow
def test_processes_that_read_at_once_see_a_whole_copy_every_time(bundles: BundleStore) -> None:
    command = [sys.executable, "-c", READER, bundles.root.url, version(1)]
    readers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("go\n")
        reader.stdin.flush()
    for reader in readers:
        _, errors = reader.communicate(timeout=300)
        assert (reader.returncode, errors) == (0, "")
