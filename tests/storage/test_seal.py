from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.errors import BundleError
from storage.seal import SUMS, check_sums, write_sums
from tests.storage.bundle_files import fill


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    fill(folder)
    return folder


@pytest.mark.slow
def test_a_sealed_folder_passes_and_sealing_again_yields_the_same_digest(bundle: Path):
    assert check_sums(bundle) == write_sums(bundle)


def test_sha256sum_reads_the_list(bundle: Path):
    done = subprocess.run(["sha256sum", "--strict", "-c", SUMS], cwd=bundle, capture_output=True, check=False)
    assert done.returncode == 0


def _link(folder: Path) -> None:
    (folder / "file-0.bin").rename(folder.parent / "outside.bin")
    (folder / "file-0.bin").symlink_to(folder.parent / "outside.bin")


def _lines(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        lines = (folder / SUMS).read_text().splitlines(keepends=True)
        (folder / SUMS).write_bytes("".join(change(lines)).encode())

    return edit


CHANGES: dict[str, Callable[[Path], object]] = {
    "a changed byte": lambda folder: (folder / "file-0.bin").write_bytes(b"other"),
    "a file gone": lambda folder: (folder / "file-0.bin").unlink(),
    "a file more": lambda folder: (folder / "more.bin").write_bytes(b""),
    "a folder more": lambda folder: (folder / "more").mkdir(),
    "a pipe more": lambda folder: os.mkfifo(folder / "pipe"),
    "a link to the same bytes": _link,
    "no list": lambda folder: (folder / SUMS).unlink(),
    "a list in another order": _lines(lambda lines: lines[::-1]),
    "a line twice": _lines(lambda lines: [lines[0], *lines]),
    "upper-case digests": _lines(lambda lines: [line[:64].upper() + line[64:] for line in lines]),
    "a path outside": _lines(lambda lines: [lines[0][:66] + "../outside.bin\n", *lines]),
    "an endless list": lambda folder: (folder / SUMS).write_bytes(b"\n" * (2 << 20)),
    "bytes that are no text": lambda folder: (folder / SUMS).write_bytes(bytes(range(256))),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.slow
def test_any_change_is_refused(change: Callable[[Path], object], bundle: Path):
    change(bundle)
    with pytest.raises(BundleError):
        check_sums(bundle)


def test_a_link_to_a_bundle_and_a_path_without_a_bundle_are_refused(bundle: Path):
    link = bundle.parent / "link"
    link.symlink_to(bundle)
    for path in (link, bundle.parent / "nowhere", bundle / SUMS):
        with pytest.raises(BundleError):
            check_sums(path)


def test_a_folder_with_something_else_cannot_be_sealed(bundle: Path):
    (bundle / "sub").mkdir()
    with pytest.raises(BundleError, match="not a regular file"):
        write_sums(bundle)
