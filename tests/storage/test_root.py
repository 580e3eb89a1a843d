from __future__ import annotations

import threading
from pathlib import Path

import pytest

from storage.errors import ConfigurationError, StoreError
from storage.root import StoreRoot

pytestmark = pytest.mark.server


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> StoreRoot:
    if request.param == "local":
        return StoreRoot.of(tmp_path / "store")
    return StoreRoot.of(request.getfixturevalue("s3_store"))


def test_what_is_put_is_listed_read_and_deleted(root: StoreRoot, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"three")
    assert root.put_new("a/b/one", b"1")
    root.put("a/two", b"22")
    root.put("three", tmp_path / "file")
    assert [(entry.name, entry.size) for entry in root.list("a")] == [("a/b/one", 1), ("a/two", 2)]
    assert root.read("three") == b"three"
    root.download("a/two", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"22"
    root.delete("a/two")
    root.delete("a/two")
    assert not root.exists("a/two")
    assert root.list("nothing") == []


def test_put_new_never_overwrites(root: StoreRoot) -> None:
    assert root.put_new("x", b"first")
    assert not root.put_new("x", b"second")
    assert root.read("x") == b"first"


def test_of_many_writers_of_one_name_one_wins(root: StoreRoot) -> None:
    won: list[int] = []
    threads = [
        threading.Thread(target=lambda number: root.put_new("x", str(number).encode()) and won.append(number), args=[n])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert root.read("x") == str(won[0]).encode()


def test_put_replaces(root: StoreRoot) -> None:
    root.put("x", b"first")
    root.put("x", b"second")
    assert root.read("x") == b"second"


def test_a_second_root_sees_what_the_first_wrote_later(root: StoreRoot) -> None:
    other = StoreRoot.of(root.url)
    root.put("a/one", b"1")
    assert len(other.list("a")) == 1
    root.put("a/two", b"2")
    assert len(other.list("a")) == 2


def test_a_missing_file_is_not_found(root: StoreRoot) -> None:
    with pytest.raises(FileNotFoundError):
        root.read("missing")


def test_only_paths_and_s3_are_roots() -> None:
    with pytest.raises(ConfigurationError, match="Use a local path or s3"):
        StoreRoot.of("gs://bucket/x")
    with pytest.raises(ConfigurationError, match="names no bucket"):
        StoreRoot.of("s3://")
    assert StoreRoot.of("file:///tmp/x").local == Path("/tmp/x")


def test_nothing_of_a_failed_write_stays(tmp_path: Path) -> None:
    root = StoreRoot.of(tmp_path)
    with pytest.raises(StoreError, match="cannot be written"):
        root.put("folder/x", tmp_path / "missing")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]
