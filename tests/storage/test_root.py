from __future__ import annotations

import hashlib
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.errors import ConfigurationError, StoreError
from storage.root import StoreRoot, check_writable
from tests.storage.s3_server import answering

pytestmark = pytest.mark.server


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> StoreRoot:
    if request.param == "local":
        return StoreRoot.of(tmp_path / "store")
    return StoreRoot.of(request.getfixturevalue("s3_store"))


def test_a_file_is_put_listed_read_and_deleted(root: StoreRoot, tmp_path: Path) -> None:
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


def test_put_replaces_and_put_new_never_overwrites(root: StoreRoot) -> None:
    assert root.put_new("x", b"first")
    assert not root.put_new("x", b"second")
    assert root.read("x") == b"first"
    root.put("x", b"third")
    assert root.read("x") == b"third"


def test_a_swap_replaces_only_the_version_that_was_read(root: StoreRoot) -> None:
    assert root.stamped("x") is None
    assert root.swap("x", b"first", "another") is None
    first = root.swap("x", b"first", None)
    found = root.stamped("x")
    assert found is not None
    assert (found.content, found.etag) == (b"first", first)
    assert root.swap("x", b"second", None) is None
    second = root.swap("x", b"second", first)
    assert second not in (None, first)
    assert root.swap("x", b"third", first) is None
    assert root.read("x") == b"second"
    root.delete("x")
    assert root.swap("x", b"third", second) is None
    assert not root.exists("x")


def test_of_many_swaps_of_one_version_one_is_done(root: StoreRoot) -> None:
    root.put("x", b"before")
    before = root.stamped("x")
    assert before is not None
    with ThreadPoolExecutor(8) as threads:
        numbers = [str(number).encode() for number in range(8)]
        tags = list(threads.map(lambda number: root.swap("x", number, before.etag), numbers))
    (done,) = [number for number, tag in zip(numbers, tags, strict=True) if tag is not None]
    assert root.read("x") == done


def test_a_store_that_can_be_written_is_left_as_it_was(root: StoreRoot) -> None:
    check_writable(root)
    assert [entry.name for entry in root.list("") if not entry.name.startswith(".locks/")] == []


def test_a_digest_is_that_of_the_bytes(root: StoreRoot) -> None:
    root.put("x", b"content")
    root.put("empty", b"")
    assert root.digest("x") == hashlib.sha256(b"content").hexdigest()
    assert root.digest("empty") == hashlib.sha256().hexdigest()
    with pytest.raises(FileNotFoundError):
        root.digest("missing")


def test_only_paths_and_s3_are_roots() -> None:
    with pytest.raises(ConfigurationError, match="Use a local path or s3"):
        StoreRoot.of("gs://bucket/x")
    with pytest.raises(ConfigurationError, match="does not name a bucket"):
        StoreRoot.of("s3://")
    assert StoreRoot.of("file:///tmp/x").local == Path("/tmp/x")


def test_an_object_store_that_cannot_be_reached_says_so(
    s3_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", closed)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    root = StoreRoot.of(s3_store)
    root._files.retries = 1  # type: ignore[attr-defined]
    for operation in operations(root, tmp_path):
        with pytest.raises(StoreError, match=r"cannot be used.*AWS_ENDPOINT_URL") as failure:
            operation()
        assert failure.value.transient


@pytest.mark.parametrize("missing", ["s3fs", "botocore"])
def test_the_error_of_a_missing_extra_names_the_package_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = (missing, "s3fs")
    for name in [name for name in sys.modules if name.partition(".")[0] in parts or name == "storage.object_root"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match=r"needs the s3 extra.*nightquant\[s3\]"):
        StoreRoot.of("s3://bucket/store").read("x")


def operations(root: StoreRoot, tmp_path: Path) -> list[Callable[[], object]]:
    return [
        lambda: root.list("a"),
        lambda: root.exists("a/x"),
        lambda: root.read("a/x"),
        lambda: root.digest("a/x"),
        lambda: root.stamped("a/x"),
        lambda: root.swap("a/x", b"1", None),
        lambda: root.download("a/x", tmp_path / "copy"),
        lambda: root.put("a/x", b"1"),
        lambda: root.put_new("a/x", b"1"),
        lambda: root.delete("a/x"),
    ]


def test_a_file_where_a_folder_should_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "store").touch()
    root = StoreRoot.of(tmp_path / "store")
    for number, operation in enumerate(operations(root, tmp_path)):
        if number != 1:  # there is no such file indeed
            with pytest.raises(StoreError, match="Not a directory"):
                operation()
    with pytest.raises(StoreError, match="Cannot write to the store"), root.lock("results"):
        pass


def test_nothing_of_a_failed_write_stays(tmp_path: Path) -> None:
    root = StoreRoot.of(tmp_path)
    with pytest.raises(StoreError, match="Cannot write to the store"):
        root.put("folder/x", tmp_path / "missing")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("503 Slow Down: SlowDown", True),
        ("400 Bad Request: RequestTimeout", True),
        ("409 Conflict: OperationAborted", True),
        ("cut", True),
        ("403 Forbidden: AccessDenied", False),
        ("404 Not Found: NoSuchBucket", False),
    ],
)
def test_a_fault_of_an_object_store_is_transient_or_not(
    fault: str, expected: bool, s3_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    root = StoreRoot.of(s3_store)
    root.put("x", b"content")
    # Many: s3fs itself tries some of these again.
    with answering(*[fault] * 20), pytest.raises(StoreError, match="cannot be used") as failure:
        root.read("x") if fault == "cut" else root.put("y", b"content")
    assert failure.value.transient is expected
