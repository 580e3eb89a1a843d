from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from storage.errors import ConfigurationError, InputError
from storage.transfer import fetch, local_path
from tests.storage.http_server import Site, serving

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site(CONTENT)) as running:
        yield running


def content_of(uri: str, folder: Path, **settings: Any) -> bytes:
    settings = {"sha256": SHA256, "max_bytes": 10**7, "first_wait_s": 0.001, **settings}
    with fetch(uri, folder, **settings) as source:
        return source.path().read_bytes()


def test_a_download_is_complete_and_removed_after_use(site: Site, tmp_path: Path) -> None:
    assert content_of(site.url, tmp_path) == CONTENT
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_downloaded_before_the_path_is_requested(site: Site, tmp_path: Path) -> None:
    with fetch(site.url, tmp_path, sha256=SHA256, max_bytes=10**7) as source:
        assert source.sha256 == SHA256
    assert site.asked == []


def test_an_error_in_the_block_keeps_the_download(site: Site, tmp_path: Path) -> None:
    def fail() -> None:
        with fetch(site.url, tmp_path, sha256=SHA256, max_bytes=10**7) as source:
            source.path()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == [SHA256]
    assert content_of(site.url, tmp_path) == CONTENT
    assert len(site.asked) == 1


def test_broken_connections_and_temporary_server_errors_are_retried(site: Site, tmp_path: Path) -> None:
    site.break_after = [100_000]
    site.statuses = [503, 429]
    assert content_of(site.url, tmp_path) == CONTENT
    assert len(site.asked) == 4


def test_lasting_server_errors_give_one_message_with_the_uri(site: Site, tmp_path: Path) -> None:
    site.statuses = [503] * 10
    with pytest.raises(
        InputError, match=r"http://127\.0\.0\.1:\d+/weights\.bin is not available: .*503.*tried 3 times"
    ) as failure:
        content_of(site.url, tmp_path, retries=2)
    assert failure.value.transient


def test_a_missing_file_is_requested_once(site: Site, tmp_path: Path) -> None:
    site.statuses = [404] * 10
    with pytest.raises(InputError, match="404") as failure:
        content_of(site.url, tmp_path)
    assert not failure.value.transient
    assert len(site.asked) == 1


def test_content_with_another_sha256_is_refused_and_leaves_nothing(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"is {SHA256}, but {'0' * 64} was expected") as failure:
        content_of(site.url, tmp_path, sha256="0" * 64)
    assert not failure.value.transient
    assert not list(tmp_path.glob("*.part"))


def test_a_file_over_the_limit_is_refused_before_it_is_read(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the limit is 1000 bytes"):
        content_of(site.url, tmp_path, max_bytes=1000)
    assert not list(tmp_path.glob("*.part"))


def test_plain_http_to_another_machine_is_refused_also_as_a_redirect(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="plain HTTP"):
        content_of("http://example.org/weights.bin", tmp_path)
    site.redirect = "http://example.org/weights.bin"
    with pytest.raises(ConfigurationError, match="plain HTTP"):
        content_of(site.url, tmp_path)


@pytest.mark.parametrize("uri", ["https://example.org/w", "http://127.0.0.1:1/w", "s3://bucket/w", "memory://w"])
@pytest.mark.slow
def test_remote_files_need_a_sha256(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a sha256 is required"):
        content_of(uri, tmp_path, sha256=None)


def test_chained_uris_cannot_go_around_the_rules(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="chained"):
        content_of("simplecache::http://example.org/w", tmp_path)


def test_schemes_that_fsspec_knows_are_read(tmp_path: Path) -> None:
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
def test_many_that_want_one_file_at_once_all_get_it_whole(site: Site, tmp_path: Path) -> None:
    together = threading.Barrier(6)

    def want(_: int) -> bytes:
        together.wait(30)
        return content_of(site.url, tmp_path)

    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            assert set(pool.map(want, range(6))) == {CONTENT}
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_scheme_is_a_wrong_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nosuch://"):
        content_of("nosuch://bucket/w", tmp_path)


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}"])
def test_local_files_are_read_in_place(form: str, tmp_path: Path) -> None:
    (tmp_path / "a file").write_bytes(CONTENT)
    uri = form.format(str(tmp_path / "a file").replace(" ", "%20" if "://" in form else " "))
    assert content_of(uri, tmp_path / "downloads", sha256=None) == CONTENT
    assert (tmp_path / "a file").exists()
    assert not (tmp_path / "downloads").exists()


def test_local_files_are_held_to_limit_sha256_and_kind(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(CONTENT)
    with pytest.raises(InputError, match="the limit is 10 bytes"):
        content_of(str(path), tmp_path, max_bytes=10)
    with pytest.raises(InputError, match="was expected"):
        content_of(str(path), tmp_path, sha256="0" * 64)
    with pytest.raises(InputError, match="not a file"):
        content_of(str(tmp_path), tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        content_of(str(tmp_path / "none"), tmp_path)


@pytest.mark.slow
def test_progress_reaches_the_whole_size(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []
    content_of(site.url, tmp_path, progress=lambda done, total, unit: seen.append((done, total)))
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_a_remote_uri_names_no_local_path() -> None:
    assert local_path("https://host/w") is None
