from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import IO

import pytest
import zstandard

from storage import export
from storage.errors import BundleError, ConfigurationError
from storage.export import export_bundle
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
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(into)
    else:
        with zstandard.open(archive, "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as opened:
            opened.extractall(into, filter="data")
    return into / "word-lm"


@pytest.mark.parametrize("ending", [".zip", ".tar.zst"])
def test_an_archive_unpacks_to_an_intact_bundle(ending: str, bundle: Path, tmp_path: Path):
    archive = export_bundle(bundle, tmp_path / f"out{ending}", name="word-lm")
    assert check_sums(unpack(archive, tmp_path / "unpacked")) == check_sums(bundle)


@pytest.mark.parametrize("ending", [".zip", ".tar.zst"])
def test_the_same_bundle_yields_the_same_archive(ending: str, bundle: Path, tmp_path: Path):
    first = export_bundle(bundle, tmp_path / f"one{ending}", name="word-lm").read_bytes()
    for path in bundle.iterdir():
        path.chmod(0o444)
        path.touch()
    assert export_bundle(bundle, tmp_path / f"two{ending}", name="word-lm").read_bytes() == first


@pytest.mark.parametrize("ending", [".zip", ".tar.zst"])
def test_a_file_is_read_in_pieces(ending: str, bundle: Path, tmp_path: Path):
    size = 32 << 20
    with (bundle / "large.bin").open("wb") as stream:
        stream.truncate(size)
    write_sums(bundle)
    tracemalloc.start()
    try:
        export_bundle(bundle, tmp_path / f"out{ending}", name="word-lm")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size / 2


@pytest.mark.parametrize("ending", [".zip", ".tar.zst"])
@pytest.mark.parametrize("size", [1, 7000, 9000])
def test_a_file_that_changes_its_length_while_it_is_read_is_not_exported(
    size: int, ending: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    opened = export._File.__init__

    def resized(self: export._File, folder: Path, name: str, *rest: IO[bytes]) -> None:
        opened(self, folder, name, *rest)
        if name == "file-0.bin":
            os.truncate(folder / name, size)

    monkeypatch.setattr(export._File, "__init__", resized)
    if size == 9000:  # more than was there: what was checked is what is exported
        archive = export_bundle(bundle, tmp_path / f"out{ending}", name="word-lm")
        check_sums(unpack(archive, tmp_path / "unpacked"))
        return
    with pytest.raises(BundleError, match=r"file-0\.bin changed while it was read"):
        export_bundle(bundle, tmp_path / f"out{ending}", name="word-lm")
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


def test_a_damaged_bundle_is_not_exported(bundle: Path, tmp_path: Path):
    (bundle / "file-0.bin").write_bytes(b"evil")
    with pytest.raises(BundleError):
        export_bundle(bundle, tmp_path / "out.zip", name="word-lm")
    assert not (tmp_path / "out.zip").exists()


@pytest.mark.parametrize("name", ["file-0.bin", SUMS])
@pytest.mark.parametrize("ending", [".zip", ".tar.zst"])
def test_a_file_that_is_exchanged_after_it_was_checked_is_not_exported(
    name: str, ending: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def exchanged(folder: Path) -> str:
        sums = check_sums(folder)
        (folder / name).write_bytes(b"exchanged")
        return sums

    monkeypatch.setattr("storage.export.check_sums", exchanged)
    with pytest.raises(BundleError, match=f"{name} changed while it was read"):
        export_bundle(bundle, tmp_path / f"out{ending}", name="word-lm")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


def test_a_signature_is_exported_as_well(bundle: Path, tmp_path: Path):
    (bundle / SIGNATURE).write_bytes(bytes(64))
    archive = export_bundle(bundle, tmp_path / "out.zip", name="word-lm")
    assert (unpack(archive, tmp_path / "unpacked") / SIGNATURE).read_bytes() == bytes(64)


def test_another_ending_is_refused(bundle: Path, tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"\.zip or \.tar\.zst"):
        export_bundle(bundle, tmp_path / "out.rar", name="word-lm")


def test_verifying_needs_neither_prefect_nor_duckdb_nor_torch_in_this_process():
    heavy = "sorted({'torch', 'prefect', 'duckdb'} & set(sys.modules))"
    code = f"import sys, tasks.bundle.verify, storage.seal; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_zstandard_only_its_format_is_refused(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigurationError, match=r"zstandard is not installed\. .*nightquant\[zstd\]"):
        export_bundle(bundle, tmp_path / "out.tar.zst", name="word-lm")
    assert export_bundle(bundle, tmp_path / "out.zip", name="word-lm").is_file()
    assert not (tmp_path / "out.tar.zst").exists()
