from __future__ import annotations

import gzip
import hashlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from storage.errors import ConfigurationError, InputError
from tasks.archive import extract, open_source

Members = dict[str, bytes]


def write_zip(path: Path, members: Members, mode: int = stat.S_IFREG | 0o644) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    return path


def write_tar(path: Path, members: Members, kind: bytes = tarfile.REGTYPE, link: str = "") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            member.type = kind
            member.linkname = link
            archive.addfile(member, io.BytesIO(content))
    return path


def files_under(folder: Path) -> Members:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "inner" / "target"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_files_come_out_as_they_went_in(write: object, target: Path, tmp_path: Path) -> None:
    members = {"wiki/wiki.train.tokens": b"a" * 100_000, "wiki/deep/er/x": b"", "./top": b"t"}
    assert callable(write)
    extract(write(tmp_path / "archive", members), target, max_bytes=10**6)
    assert files_under(target) == {name.removeprefix("./"): content for name, content in members.items()}


@pytest.mark.parametrize(
    "name", ["../evil", "/tmp/evil-of-nightquant", "a/../../evil", "..\\evil", "a/b/../../../evil"]
)
@pytest.mark.parametrize("write", [write_zip, write_tar])
@pytest.mark.slow
def test_members_outside_the_target_refuse_the_archive(write: object, name: str, target: Path, tmp_path: Path) -> None:
    assert callable(write)
    archive = write(tmp_path / "archive", {name: b"x"})
    with pytest.raises(InputError, match="out of its folder"):
        extract(archive, target, max_bytes=100)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [archive]
    assert not Path("/tmp/evil-of-nightquant").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar_refuse_it(kind: bytes, target: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it is a link or a device"):
        extract(write_tar(tmp_path / "archive", {"train.txt": b""}, kind, "/etc/hostname"), target, max_bytes=100)
    assert list(target.iterdir()) == []


def test_links_in_a_zip_refuse_it(target: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it is a link or a device"):
        extract(
            write_zip(tmp_path / "archive", {"train.txt": b"/etc/hostname"}, stat.S_IFLNK | 0o777),
            target,
            max_bytes=100,
        )
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_more_bytes_than_allowed_are_never_written(write: object, target: Path, tmp_path: Path) -> None:
    assert callable(write)
    archive = write(tmp_path / "archive", {f"zeros{number}": bytes(4 << 20) for number in range(3)})
    assert archive.stat().st_size < 100_000
    with pytest.raises(InputError, match="contains more than 5000000 bytes"):
        extract(archive, target, max_bytes=5_000_000)
    assert sum(map(len, files_under(target).values())) <= 5_000_000


def test_sizes_that_a_zip_states_are_not_believed(target: Path, tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "archive", {"zeros": bytes(1_000_000)})
    archive.write_bytes(archive.read_bytes().replace((1_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with pytest.raises(InputError):
        extract(archive, target, max_bytes=500_000)
    assert sum(map(len, files_under(target).values())) <= 500_000


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_a_name_that_is_file_and_folder_refuses_the_archive(write: object, target: Path, tmp_path: Path) -> None:
    assert callable(write)
    with pytest.raises(InputError, match="two members with the name"):
        extract(write(tmp_path / "archive", {"a": b"file", "a/b": b"in it"}), target, max_bytes=100)


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_damaged_archives_are_named(write: object, target: Path, tmp_path: Path) -> None:
    assert callable(write)
    archive = write(tmp_path / "archive", {"train.txt": bytes(range(256)) * 1000})
    whole = archive.read_bytes()
    archive.write_bytes(whole[:20] + b"damage here" + whole[40:])
    with pytest.raises(InputError, match="archive"):
        extract(archive, target, max_bytes=10**6)


def test_what_is_no_archive_is_named(target: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("just text")
    with pytest.raises(InputError, match=r"plain\.txt is neither a directory nor"):
        extract(tmp_path / "plain.txt", target, max_bytes=100)


def test_a_source_is_extracted_only_when_asked_and_gone_afterwards(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "corpus.zip", {"train.txt": b"a"})
    downloads = tmp_path / "downloads"
    with open_source(str(archive), downloads, sha256=None, max_bytes=1000) as source:
        assert source.sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
        assert not downloads.exists()
        assert files_under(source.path()) == {"train.txt": b"a"}
    assert list(downloads.iterdir()) == []


def test_a_directory_is_used_in_place_and_has_no_sha256(tmp_path: Path) -> None:
    with open_source(tmp_path.as_uri(), tmp_path / "downloads", sha256=None, max_bytes=1) as source:
        assert source.path() == tmp_path
    with (
        pytest.raises(ConfigurationError, match="sha256 applies only to archives"),
        open_source(str(tmp_path), tmp_path, sha256="0" * 64, max_bytes=1),
    ):
        pass


@pytest.mark.parametrize("name", ["", "\0", "\0.txt", "a" * 256, "/".join(["abcdefgh"] * 200)])
@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_a_name_that_no_file_can_have_refuses_the_archive(
    write: object, name: str, target: Path, tmp_path: Path
) -> None:
    assert callable(write)
    with pytest.raises(InputError, match=r"The archive .*archive was rejected because of the member .*: it (is|holds)"):
        extract(write(tmp_path / "archive", {name: b"x"}), target, max_bytes=100)


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME], ids=["pax", "long name"])
def test_a_header_that_would_fill_the_memory_is_refused_unread(
    is_first: bool, kind: bytes, target: Path, tmp_path: Path
) -> None:
    header = tarfile.TarInfo("header")
    header.type, header.size = kind, 1 << 40
    plain = tarfile.TarInfo("plain")
    content = b"" if is_first else plain.tobuf()
    with gzip.open(tmp_path / "archive.tar.gz", "wb") as archive:
        archive.write(content + header.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20))
    with pytest.raises(InputError, match=r"The archive .* is damaged .*\(a header is 1099511627776 bytes"):
        extract(tmp_path / "archive.tar.gz", target, max_bytes=1000)


def test_a_tar_of_a_folder_itself_is_extracted(target: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"a")
    with tarfile.open(tmp_path / "archive.tar", "w") as archive:
        archive.add(tmp_path / "folder", arcname="./")
    extract(tmp_path / "archive.tar", target, max_bytes=100)
    assert files_under(target) == {"a": b"a"}
