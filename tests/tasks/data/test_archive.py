from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from storage.errors import ConfigurationError
from tasks.data.archive import extract, open_source
from tasks.environment.libraries import LibraryError

Members = dict[str, bytes]


def write_zip(path: Path, members: Members) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, members: Members) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def files_under(folder: Path) -> Members:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "inner" / "target"
    folder.mkdir(parents=True)
    return folder


both = pytest.mark.parametrize("write", [write_zip, write_tar])


@both
def test_members_never_leave_the_folder(write: Callable[..., Path], target: Path, tmp_path: Path) -> None:
    archive = write(tmp_path / "archive", {"../evil": b"x"})
    with suppress(LibraryError):  # tarfile refuses the name, and zipfile removes the dots
        extract(archive, target, "archive")
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(target)]
    assert outside == [archive]


@both
def test_damaged_archives_are_named(write: Callable[..., Path], target: Path, tmp_path: Path) -> None:
    archive = write(tmp_path / "archive", {"train.txt": bytes(range(256)) * 1000})
    whole = archive.read_bytes()
    archive.write_bytes(whole[:20] + b"damage here" + whole[40:])
    with pytest.raises(LibraryError, match=r"corpus cannot be extracted: .* Use a directory, or a complete"):
        extract(archive, target, "corpus")


def test_a_source_is_extracted_only_when_asked_and_removed_afterwards(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "corpus.zip", {"train.txt": b"a"})
    downloads = tmp_path / "downloads"
    with open_source(str(archive), downloads, sha256=None) as source:
        assert source.sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
        assert not downloads.exists()
        assert files_under(source.path()) == {"train.txt": b"a"}
    assert list(downloads.iterdir()) == []


def test_a_directory_is_used_in_place_and_has_no_sha256(tmp_path: Path) -> None:
    with open_source(tmp_path.as_uri(), tmp_path / "downloads", sha256=None) as source:
        assert source.path() == tmp_path
    with (
        pytest.raises(ConfigurationError, match="sha256 applies only to archives"),
        open_source(str(tmp_path), tmp_path, sha256="0" * 64),
    ):
        pass
