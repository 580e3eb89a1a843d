from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from storage.errors import ConfigurationError
from storage.seal import SIGNATURE, check_sums, export_bundle
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


def test_an_existing_file_is_kept_unless_it_is_to_be_replaced(bundle: Path, tmp_path: Path):
    target = tmp_path / "out.zip"
    target.write_bytes(b"mine")
    with pytest.raises(ConfigurationError, match="--force"):
        export_bundle(bundle, target, name="word-lm")
    assert target.read_bytes() == b"mine"
    export_bundle(bundle, target, name="word-lm", overwrite=True)
    assert zipfile.is_zipfile(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "out.zip"]


def test_a_signature_is_exported_as_well(bundle: Path, tmp_path: Path):
    (bundle / SIGNATURE).write_bytes(bytes(64))
    archive = export_bundle(bundle, tmp_path / "out.zip", name="word-lm")
    assert (unpack(archive, tmp_path / "unpacked") / SIGNATURE).read_bytes() == bytes(64)


def test_verifying_needs_neither_prefect_nor_duckdb_nor_torch_in_this_process():
    heavy = "sorted({'torch', 'prefect', 'duckdb'} & set(sys.modules))"
    code = f"import sys, tasks.bundle.verify, storage.seal; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
