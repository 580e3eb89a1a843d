"""What libraries raise, really raised: which of it may pass."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import ssl
import urllib.request
from collections.abc import Callable
from types import ModuleType

import cloudpickle
import httpx
import pytest

from storage.errors import (
    InputError,
    NightquantError,
    QuantizationError,
    StoreError,
    backoff_s,
    is_transient,
    unwritable,
)
from tests.storage.http_server import Site, serving


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
@pytest.mark.parametrize(("status", "expected"), [(503, True), (429, True), (404, False), (403, False), (400, False)])
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
        (errno.EACCES, False),
        (errno.EROFS, False),
        (errno.ENOENT, False),
        (errno.EIO, False),
        (errno.ESTALE, True),
        (errno.ETIMEDOUT, True),
        (errno.EHOSTUNREACH, True),
    ],
)
def test_the_systems_errors_are_told_apart(number: int, expected: bool) -> None:
    error = OSError(number, os.strerror(number), "/srv/store/file")
    assert is_transient(error) is expected
    assert unwritable("/srv/store", error).transient is expected


def test_an_error_that_says_so_itself_is_believed_before_its_cause() -> None:
    lasting = StoreError("Not this way.")
    lasting.__cause__ = TimeoutError()
    assert not is_transient(lasting)
    assert is_transient(StoreError("Not now.", transient=True))


@pytest.mark.parametrize("kind", [InputError, StoreError, QuantizationError])
@pytest.mark.parametrize("transient", [True, False])
@pytest.mark.parametrize("through", [pickle, cloudpickle])
def test_an_error_keeps_it_on_its_way_between_processes(
    kind: type[NightquantError], transient: bool, through: ModuleType
) -> None:
    sent = through.loads(through.dumps(kind("It is away.", hint="Wait.", transient=transient)))
    assert type(sent) is kind
    assert str(sent) == "It is away. Wait."
    assert sent.transient is transient


def test_waits_grow_up_to_a_minute() -> None:
    assert 5 <= backoff_s(0, 10) <= 10
    assert 20 <= backoff_s(2, 10) <= 40
    assert 30 <= backoff_s(50, 10) <= 60
    assert backoff_s(3, 0) == 0


def test_a_certificate_that_is_refused_stays_refused() -> None:
    error = ConnectionError("the handshake failed")
    error.__cause__ = ssl.SSLCertVerificationError()
    assert not is_transient(error)
