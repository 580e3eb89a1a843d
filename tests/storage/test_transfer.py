from __future__ import annotations

import hashlib
import socket
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

from storage import transfer
from storage.errors import ConfigurationError, InputError, is_transient
from storage.transfer import downloading, fetch
from tests.storage.http_server import Site, serving

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site(CONTENT)) as running:
        yield running


def content_of(uri: str, folder: Path, sha256: str | None = SHA256) -> bytes:
    with fetch(uri, folder, sha256=sha256) as source:
        return source.path().read_bytes()


def test_a_file_is_downloaded_on_request_and_removed_after_use(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []
    with fetch(site.url, tmp_path, sha256=SHA256, progress=lambda done, total, _: seen.append((done, total))) as source:
        assert site.asked == []
        assert source.path().read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_block_keeps_the_download(site: Site, tmp_path: Path) -> None:
    def fail() -> None:
        with fetch(site.url, tmp_path, sha256=SHA256) as source:
            source.path()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == [SHA256]
    assert content_of(site.url, tmp_path) == CONTENT
    assert len(site.asked) == 1


@pytest.mark.parametrize(
    ("status", "break_after", "why", "transient"),
    [(503, None, "503", True), (404, None, "404", False), (None, 100_000, "closed", True)],
)
def test_a_failed_download_names_the_uri_and_may_be_retried_later(
    status: int | None, break_after: int | None, why: str, transient: bool, site: Site, tmp_path: Path
) -> None:
    site.statuses, site.break_after = [status] if status else [], [break_after] if break_after else []
    message = rf"http://127\.0\.0\.1:\d+/weights\.bin is not available: .*{why}"
    with pytest.raises(InputError, match=message) as failure:
        content_of(site.url, tmp_path)
    assert failure.value.transient is transient
    assert list(tmp_path.iterdir()) == []


def test_content_with_another_sha256_is_refused_and_leaves_nothing(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"is {SHA256}, but {'0' * 64} was expected") as failure:
        content_of(site.url, tmp_path, sha256="0" * 64)
    assert not failure.value.transient
    assert not list(tmp_path.glob("*.part"))


def test_plain_http_to_another_machine_is_refused_also_as_a_redirect(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="plain HTTP"):
        content_of("http://example.org/weights.bin", tmp_path)
    site.redirect = "http://example.org/weights.bin"
    with pytest.raises(ConfigurationError, match="plain HTTP"):
        content_of(site.url, tmp_path)


@pytest.mark.parametrize(
    ("uri", "sha256", "why"),
    [
        ("https://example.org/w", None, "a sha256 is required"),
        ("simplecache::http://example.org/w", SHA256, "chained"),
        ("nosuch://bucket/w", SHA256, "nosuch://"),
    ],
)
def test_a_uri_that_cannot_be_fetched_is_a_wrong_configuration(
    uri: str, sha256: str | None, why: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        content_of(uri, tmp_path, sha256)


def test_schemes_that_fsspec_supports_are_read(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/transfer/w.bin", CONTENT)
    assert content_of("memory://transfer/w.bin", tmp_path) == CONTENT
    with pytest.raises(InputError, match=r"memory://transfer/none\.bin is not available"):
        content_of("memory://transfer/none.bin", tmp_path, sha256="1" * 64)


@pytest.mark.server
def test_an_s3_object_is_read(s3_store: str, tmp_path: Path) -> None:
    bucket = s3_store.removeprefix("s3://").partition("/")[0]
    boto3 = pytest.importorskip("boto3")
    boto3.client("s3").put_object(Bucket=bucket, Key="models/w.bin", Body=CONTENT)
    assert content_of(f"s3://{bucket}/models/w.bin", tmp_path) == CONTENT
    with pytest.raises(InputError, match=r"s3://.*/none\.bin is not available"):
        content_of(f"s3://{bucket}/models/none.bin", tmp_path, sha256="1" * 64)


@pytest.mark.slow
def test_simultaneous_readers_of_one_file_all_get_it_completely(site: Site, tmp_path: Path) -> None:
    together = threading.Barrier(6)

    def want(_: int) -> bytes:
        together.wait(30)
        return content_of(site.url, tmp_path)

    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            assert set(pool.map(want, range(6))) == {CONTENT}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}"])
def test_local_files_are_read_in_place(form: str, tmp_path: Path) -> None:
    (tmp_path / "a file").write_bytes(CONTENT)
    uri = form.format(str(tmp_path / "a file").replace(" ", "%20" if "://" in form else " "))
    assert content_of(uri, tmp_path / "downloads", sha256=None) == CONTENT
    assert (tmp_path / "a file").exists()
    assert not (tmp_path / "downloads").exists()


def test_local_files_are_checked_against_sha256_and_kind(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(CONTENT)
    with pytest.raises(InputError, match="was expected"):
        content_of(str(path), tmp_path, sha256="0" * 64)
    with pytest.raises(InputError, match="not a file"):
        content_of(str(tmp_path), tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        content_of(str(tmp_path / "none"), tmp_path)


def get(url: str) -> bytes:
    """Download as torchvision does: whatever goes wrong becomes a text."""
    try:
        with urllib.request.urlopen(url) as response:
            content: bytes = response.read()
    except OSError as error:
        raise RuntimeError(f"Error downloading: {error}") from None
    return content


def test_a_librarys_network_failure_is_transient_and_other_failures_are_not(site: Site) -> None:
    site.statuses = [503, 404]
    for is_away in (True, False):
        with pytest.raises((ConnectionError, RuntimeError)) as failure, downloading():
            get(site.url)
        assert is_transient(failure.value) is is_away


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(ConnectionError, match="timed out"), downloading():
            get(url)
