from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from storage.errors import ConfigurationError, InputError, StoreError
from storage.transfer import fetch, local_path, shown
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


def test_a_download_is_whole_and_gone_after_its_use(site: Site, tmp_path: Path) -> None:
    assert content_of(site.url, tmp_path) == CONTENT
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_downloaded_before_the_path_is_asked_for(site: Site, tmp_path: Path) -> None:
    with fetch(site.url, tmp_path, sha256=SHA256, max_bytes=10**7) as source:
        assert source.sha256 == SHA256
    assert site.asked == []


def test_broken_connections_are_taken_up_where_they_broke(site: Site, tmp_path: Path) -> None:
    site.break_after = [100_000, 200_000]
    assert content_of(site.url, tmp_path) == CONTENT
    assert site.asked[0] == ""
    first, second = (int(asked.removeprefix("bytes=").rstrip("-")) for asked in site.asked[1:])
    assert 0 < first <= 100_000
    assert first < second <= 300_000


def test_a_later_run_goes_on_where_an_earlier_one_gave_up(site: Site, tmp_path: Path) -> None:
    site.break_after = [300_000]
    with pytest.raises(InputError, match=r"weights\.bin cannot be had"):
        content_of(site.url, tmp_path, retries=0)
    assert [path.name for path in tmp_path.iterdir()] == [f"{SHA256}.part"]
    assert content_of(site.url, tmp_path) == CONTENT
    assert site.asked[1].startswith("bytes=")


def test_a_server_without_ranges_is_read_from_the_beginning(site: Site, tmp_path: Path) -> None:
    site.ranges = False
    site.break_after = [100_000]
    assert content_of(site.url, tmp_path) == CONTENT


def test_a_file_that_changed_between_attempts_is_read_from_the_beginning(site: Site, tmp_path: Path) -> None:
    (tmp_path / f"{SHA256}.part").write_bytes(b"the beginning of another version")
    assert content_of(site.url, tmp_path) == CONTENT
    assert site.asked == ["bytes=32-", ""]


def test_a_longer_rest_than_the_file_is_thrown_away(site: Site, tmp_path: Path) -> None:
    (tmp_path / f"{SHA256}.part").write_bytes(CONTENT + b"more")
    assert content_of(site.url, tmp_path) == CONTENT


def test_a_whole_rest_is_used_as_it_is(site: Site, tmp_path: Path) -> None:
    (tmp_path / f"{SHA256}.part").write_bytes(CONTENT)
    assert content_of(site.url, tmp_path) == CONTENT
    assert len(site.asked) == 1


def test_passing_troubles_of_the_server_are_waited_out(site: Site, tmp_path: Path) -> None:
    site.statuses = [503, 429, 500]
    assert content_of(site.url, tmp_path) == CONTENT


def test_troubles_that_do_not_pass_give_one_message_with_the_uri(site: Site, tmp_path: Path) -> None:
    site.statuses = [503] * 10
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:\d+/weights\.bin cannot be had: .*503.*tried 3 times"):
        content_of(site.url, tmp_path, retries=2)


def test_what_is_not_there_is_asked_for_once(site: Site, tmp_path: Path) -> None:
    site.statuses = [404] * 10
    with pytest.raises(InputError, match="404"):
        content_of(site.url, tmp_path)
    assert len(site.asked) == 1


def test_no_server_gives_one_message_with_the_uri(site: Site, tmp_path: Path) -> None:
    with serving(Site(b"")) as closed:
        pass
    with pytest.raises(InputError, match=f"{closed.url} cannot be had"):
        content_of(closed.url, tmp_path, retries=1)


def test_another_content_than_the_sha256_says_is_refused_and_leaves_nothing(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"its SHA-256 is {SHA256}, but {'0' * 64} was expected"):
        content_of(site.url, tmp_path, sha256="0" * 64)
    assert all(path.stat().st_size == 0 for path in tmp_path.iterdir())


def test_a_file_over_the_limit_is_refused_before_it_is_read(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at most 1000 are allowed"):
        content_of(site.url, tmp_path, max_bytes=1000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0


def test_plain_http_to_another_machine_is_refused_also_as_a_redirect(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="plain HTTP"):
        content_of("http://example.org/weights.bin", tmp_path)
    site.redirect = "http://example.org/weights.bin"
    with pytest.raises(ConfigurationError, match="plain HTTP"):
        content_of(site.url, tmp_path)


@pytest.mark.parametrize("uri", ["https://example.org/w", "http://127.0.0.1:1/w", "s3://bucket/w", "memory://w"])
def test_remote_files_need_a_sha256(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no sha256"):
        content_of(uri, tmp_path, sha256=None)


def test_chained_uris_cannot_go_around_the_rules(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="chained"):
        content_of("simplecache::http://example.org/w", tmp_path)


def test_schemes_that_fsspec_knows_are_read_and_taken_up(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/transfer/w.bin", CONTENT)
    (tmp_path / f"{SHA256}.part").write_bytes(CONTENT[:1000])
    assert content_of("memory://transfer/w.bin", tmp_path) == CONTENT
    with pytest.raises(InputError, match=r"memory://transfer/none\.bin cannot be had"):
        content_of("memory://transfer/none.bin", tmp_path, sha256="1" * 64)


@pytest.mark.server
def test_an_object_of_s3_is_read_and_taken_up(s3_store: str, tmp_path: Path) -> None:
    bucket = s3_store.removeprefix("s3://").partition("/")[0]
    boto3 = pytest.importorskip("boto3")
    boto3.client("s3").put_object(Bucket=bucket, Key="models/w.bin", Body=CONTENT)
    (tmp_path / f"{SHA256}.part").write_bytes(CONTENT[:1000])
    assert content_of(f"s3://{bucket}/models/w.bin", tmp_path) == CONTENT
    with pytest.raises(InputError, match=r"s3://.*/none\.bin cannot be had"):
        content_of(f"s3://{bucket}/models/none.bin", tmp_path, sha256="1" * 64)


def test_many_that_want_one_file_at_once_all_get_it_whole(site: Site, tmp_path: Path) -> None:
    together = threading.Barrier(6)

    def want(_: int) -> bytes:
        together.wait(30)
        return content_of(site.url, tmp_path)

    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            assert set(pool.map(want, range(6))) == {CONTENT}
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_asked_for_twice_is_the_same(site: Site, tmp_path: Path) -> None:
    with fetch(site.url, tmp_path, sha256=SHA256, max_bytes=10**7) as source:
        assert source.path() == source.path()
    assert len(site.asked) == 1


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
    with pytest.raises(InputError, match="at most 10 are allowed"):
        content_of(str(path), tmp_path, max_bytes=10)
    with pytest.raises(InputError, match="was expected"):
        content_of(str(path), tmp_path, sha256="0" * 64)
    with pytest.raises(InputError, match="not a file"):
        content_of(str(tmp_path), tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        content_of(str(tmp_path / "none"), tmp_path)


def test_a_folder_that_cannot_be_made_is_a_trouble_of_the_store(site: Site, tmp_path: Path) -> None:
    (tmp_path / "downloads").write_bytes(b"a file in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        content_of(site.url, tmp_path / "downloads")


def test_progress_reaches_the_whole_size(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []
    content_of(site.url, tmp_path, progress=lambda done, total, unit: seen.append((done, total)))
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_messages_show_neither_passwords_nor_signatures() -> None:
    assert shown("https://user:secret@host:1/w?token=x") == "https://host:1/w"
    assert local_path("https://host/w") is None
