"""A bundle's copy that the processes of a host share: whole at every moment, and never exchanged under its readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.bundles import BundleStore
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


def test_a_later_signature_is_in_the_copies_that_are_made_later(bundles: BundleStore) -> None:
    unsigned = copied(bundles)
    signing = BundleStore(bundles.root, signer_of())
    signing.sign("word-lm", version(1), check_sums(unsigned))
    signature = bundles.root.read(f"{LOCATION}/{SIGNATURE}")
    assert (copied(bundles) / SIGNATURE).read_bytes() == signature
    assert not (unsigned / SIGNATURE).exists()
    (copied(bundles) / SIGNATURE).write_bytes(bytes(64))
    assert (copied(bundles) / SIGNATURE).read_bytes() == signature
