from __future__ import annotations

import asyncio
import errno
import os
import pickle
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import cloudpickle
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import InputError, StoreError, backoff_s, is_transient, printable, shown, unwritable, writing
from tests.storage.http_server import Site, serving

FOLDER = Path("/srv/store/handoff")


@pytest.mark.parametrize("name", [None, "/srv/store/handoff", "/srv/store/handoff/x", "/srv/store", "/srv"])
@pytest.mark.slow
def test_an_error_at_the_folder_in_it_or_above_it_is_the_stores(name: str | None) -> None:
    with (
        pytest.raises(StoreError, match="Cannot write to the store the store: No space left"),
        writing("the store", FOLDER),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


@pytest.mark.parametrize("name", ["/srv/store/handoff2", "/srv/st", "/home/model.pth", "model.pth"])
@pytest.mark.slow
def test_an_error_elsewhere_is_not_changed(name: str) -> None:
    with pytest.raises(FileNotFoundError), writing("the store", FOLDER):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("https://user:secret@host:1/w?token=x#part", "https://host:1/w"),
        ("https://host/w", "https://host/w"),
        ("s3://key:secret@bucket/a@b", "s3://bucket/a@b"),
        ("zip://inner.pth::https://u:secret@host/o.zip?X-Amz-Signature=secret", "zip://inner.pth::https://host/o.zip"),
        ("http://[bad?secret", "http://[bad"),
        ("/data/what?.bin", "/data/what?.bin"),
        ("data/a@b", "data/a@b"),
    ],
)
@pytest.mark.slow
def test_a_uri_is_shown_without_credentials_and_queries(uri: str, expected: str) -> None:
    assert shown(uri) == expected


def test_no_message_shows_credentials_wherever_the_text_comes_from() -> None:
    error = InputError(
        "Get 'https://u:secret@host/a?sig=secret' failed.", hint="See s3://k:secret@bucket?sig=secret ok."
    )
    assert str(error) == "Get 'https://host/a' failed. See s3://bucket ok."


@given(st.text())
def test_a_message_is_always_printable_and_cleaning_it_again_changes_nothing(text: str) -> None:
    cleaned = printable(text)
    assert all(character.isprintable() or character in "\n\t" for character in cleaned)
    assert printable(cleaned) == cleaned
    cleaned.encode()


def raised(call: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the library raises is the point
        call()
    return caught.value


def with_httpx(url: str) -> None:
    httpx.get(url, trust_env=False).raise_for_status()


def with_requests(url: str) -> None:
    requests = pytest.importorskip("requests")
    requests.get(url, timeout=30).raise_for_status()


def with_urllib(url: str) -> None:
    with urllib.request.urlopen(url) as response:
        response.read()


def with_aiohttp(url: str) -> None:
    aiohttp = pytest.importorskip("aiohttp")

    async def get() -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url) as response:
            await response.read()

    asyncio.run(get())


CLIENTS = [with_httpx, with_requests, with_urllib, with_aiohttp]


@pytest.mark.parametrize("get", CLIENTS)
@pytest.mark.parametrize(("status", "expected"), [(503, True), (404, False)])
@pytest.mark.slow
def test_the_servers_answer_decides(get: Callable[[str], None], status: int, expected: bool) -> None:
    with serving(Site(b"content", statuses=[status])) as site:
        assert is_transient(raised(lambda: get(site.url))) is expected


@pytest.mark.parametrize("get", CLIENTS)
def test_a_server_that_is_away_may_come_back(get: Callable[[str], None]) -> None:
    with serving(Site(b"")) as closed:
        pass
    assert is_transient(raised(lambda: get(closed.url)))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, False),
        (errno.ENOENT, False),
        (errno.ESTALE, True),
        (errno.ETIMEDOUT, True),
    ],
)
def test_the_systems_errors_are_distinguished(number: int, expected: bool) -> None:
    error = OSError(number, os.strerror(number), "/srv/store/file")
    assert is_transient(error) is expected
    assert unwritable("/srv/store", error).transient is expected


def test_an_error_that_says_so_itself_is_believed_before_its_cause() -> None:
    lasting = StoreError("Not this way.")
    lasting.__cause__ = TimeoutError()
    assert not is_transient(lasting)
    assert is_transient(StoreError("Not now.", transient=True))


@pytest.mark.parametrize("through", [pickle, cloudpickle])
def test_an_error_keeps_it_on_its_way_between_processes(through: ModuleType) -> None:
    sent = through.loads(through.dumps(InputError("It is away.", hint="Wait.", transient=True)))
    assert type(sent) is InputError
    assert str(sent) == "It is away. Wait."
    assert sent.transient


def test_waits_grow_up_to_a_minute() -> None:
    assert 5 <= backoff_s(0, 10) <= 10
    assert 20 <= backoff_s(2, 10) <= 40
    assert 30 <= backoff_s(50, 10) <= 60
    assert backoff_s(3, 0) == 0


def test_a_certificate_that_is_refused_stays_refused() -> None:
    error = ConnectionError("the handshake failed")
    error.__cause__ = ssl.SSLCertVerificationError()
    assert not is_transient(error)
