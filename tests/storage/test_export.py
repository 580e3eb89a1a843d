from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from storage.copies import export_bundle
from storage.errors import BundleError, ConfigurationError
from storage.seal import SIGNATURE, SUMS, check_sums, write_sums
from tests.storage.bundle_files import fill


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    fill(folder, b"content" * 1000)
    return folder


def unpack(archive: Path, into: Path) -> Path:
    into.mkdir()
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(into)
    return into / "word-lm"


def test_an_archive_unpacks_to_an_intact_bundle(bundle: Path, tmp_path: Path):
    archive = export_bundle(bundle, tmp_path / "out.zip", name="word-lm")
    assert check_sums(unpack(archive, tmp_path / "unpacked")) == check_sums(bundle)


def test_the_same_bundle_yields_the_same_archive(bundle: Path, tmp_path: Path):
    first = export_bundle(bundle, tmp_path / "one.zip", name="word-lm").read_bytes()
    for path in bundle.iterdir():
        path.chmod(0o444)
        path.touch()
    assert export_bundle(bundle, tmp_path / "two.zip", name="word-lm").read_bytes() == first


def test_a_file_is_read_in_pieces(bundle: Path, tmp_path: Path):
    size = 32 << 20
    with (bundle / "large.bin").open("wb") as stream:
        stream.truncate(size)
    write_sums(bundle)
    tracemalloc.start()
    try:
        export_bundle(bundle, tmp_path / "out.zip", name="word-lm")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size / 2


@pytest.mark.parametrize("size", [1, 7000, 9000])
def test_a_file_that_changes_its_length_while_it_is_read_is_not_exported(
    size: int, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    opened = zipfile.ZipFile.open

    def resized(self: zipfile.ZipFile, info: zipfile.ZipInfo, mode: str = "r", **options: Any) -> Any:
        if mode == "w" and info.filename == "word-lm/file-0.bin":
            os.truncate(bundle / "file-0.bin", size)
        return opened(self, info, mode, **options)

    monkeypatch.setattr(zipfile.ZipFile, "open", resized)
    if size == 9000:  # more than was there: what was checked is what is exported
        archive = export_bundle(bundle, tmp_path / "out.zip", name="word-lm")
        check_sums(unpack(archive, tmp_path / "unpacked"))
        return
    with pytest.raises(BundleError, match=r"file-0\.bin changed while it was being read"):
        export_bundle(bundle, tmp_path / "out.zip", name="word-lm")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


def test_an_existing_file_is_kept_unless_it_is_to_be_replaced(bundle: Path, tmp_path: Path):
    target = tmp_path / "out.zip"
    target.write_bytes(b"mine")
    with pytest.raises(ConfigurationError, match="--force"):
        export_bundle(bundle, target, name="word-lm")
    assert target.read_bytes() == b"mine"
    export_bundle(bundle, target, name="word-lm", overwrite=True)
    assert zipfile.is_zipfile(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "out.zip"]


@pytest.mark.slow
def test_a_damaged_bundle_is_not_exported(bundle: Path, tmp_path: Path):
    (bundle / "file-0.bin").write_bytes(b"evil")
    with pytest.raises(BundleError):
        export_bundle(bundle, tmp_path / "out.zip", name="word-lm")
    assert not (tmp_path / "out.zip").exists()


@pytest.mark.parametrize("name", ["file-0.bin", SUMS])
def test_a_file_that_is_exchanged_after_it_was_checked_is_not_exported(
    name: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def exchanged(folder: Path) -> str:
        sums = check_sums(folder)
        (folder / name).write_bytes(b"exchanged")
        return sums

    monkeypatch.setattr("storage.copies.check_sums", exchanged)
    with pytest.raises(BundleError, match=f"{name} changed while it was being read"):
        export_bundle(bundle, tmp_path / "out.zip", name="word-lm")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


def test_a_signature_is_exported_as_well(bundle: Path, tmp_path: Path):
    (bundle / SIGNATURE).write_bytes(bytes(64))
    archive = export_bundle(bundle, tmp_path / "out.zip", name="word-lm")
    assert (unpack(archive, tmp_path / "unpacked") / SIGNATURE).read_bytes() == bytes(64)


def test_another_ending_is_refused(bundle: Path, tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"name that ends in \.zip"):
        export_bundle(bundle, tmp_path / "out.rar", name="word-lm")


def test_verifying_needs_neither_prefect_nor_duckdb_nor_torch_in_this_process():
    heavy = "sorted({'torch', 'prefect', 'duckdb'} & set(sys.modules))"
    code = f"import sys, tasks.bundle.verify, storage.seal; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
