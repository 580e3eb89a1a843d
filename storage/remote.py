"""Open remote files at any byte offset, using httpx for HTTP and fsspec for all other schemes.

`with_retries` adds retries and a time limit to library functions that download with urllib, even if the functions hide
network errors.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, Request

import fsspec

from storage.errors import ConfigurationError
from storage.transient import STATUSES, backoff_s, is_transient

if TYPE_CHECKING:
    import httpx

_PIECE = 1 << 20


class Broken(Exception):  # noqa: N818
    """The transfer failed with a transient error and can be retried."""

    transient = True


class Refused(Exception):  # noqa: N818
    """The file is not available, and a retry would not help."""

    transient = False


@dataclass(frozen=True)
class Stream:
    """The bytes of a remote file, beginning at ``start``; ``total`` is the complete length, or None if unknown."""

    start: int
    total: int | None
    pieces: Iterator[bytes]


def open_stream(uri: str, start: int) -> AbstractContextManager[Stream]:
    """Open a remote file at byte `start`, or at byte 0 if the server ignores ranges (see :attr:`Stream.start`)."""
    return _open_http(uri, start) if urlsplit(uri).scheme in ("http", "https") else _open_fsspec(uri, start)


@contextmanager
def _open_http(uri: str, start: int) -> Iterator[Stream]:
    import httpx  # import here, because httpx also imports rich and most processes never download

    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    # A hook checks each request, including redirects. Requests to this host never use a proxy.
    hooks = {"request": [lambda request: _check_http(str(request.url))]}
    is_own = _is_loopback(urlsplit(uri).hostname or "")
    try:
        with (
            httpx.Client(follow_redirects=True, timeout=30, event_hooks=hooks, trust_env=not is_own) as client,
            client.stream("GET", uri, headers=headers) as response,
        ):
            yield _http_stream(response, start)
    except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.TooManyRedirects, httpx.DecodingError) as error:
        raise Refused(str(error)) from error
    except httpx.TransportError as error:
        raise (Broken if is_transient(error) else Refused)(str(error) or type(error).__name__) from error


def _http_stream(response: httpx.Response, start: int) -> Stream:
    status = response.status_code
    if status in (200, 206):
        begin = start if status == 206 else 0
        length = response.headers.get("Content-Length", "")
        # Pass on each piece as it arrives, because buffered bytes would be lost if the connection broke.
        is_known = re.fullmatch("[0-9]{1,18}", length)
        return Stream(begin, begin + int(length) if is_known else None, response.iter_raw())
    if status == 416 and start:
        # The remote file has no bytes after `start`. The SHA-256 shows whether the partial file is complete.
        return Stream(start, None, iter(()))
    reason = f"the server answered {status} {response.reason_phrase}".rstrip()
    raise (Broken if status in STATUSES else Refused)(reason)


def _check_http(uri: str) -> None:
    """Refuse plain HTTP, which is not encrypted, unless the URL refers to this host."""
    parts = urlsplit(uri)
    if parts.scheme != "https" and not _is_loopback(parts.hostname or ""):
        raise ConfigurationError(
            f"{parts.scheme}://{parts.hostname}{parts.path} uses plain HTTP, which is allowed only for localhost.",
            hint="Use an https:// URL.",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def _open_fsspec(uri: str, start: int) -> Iterator[Stream]:
    scheme = urlsplit(uri).scheme
    try:
        file_system, path = fsspec.core.url_to_fs(uri)
    except ImportError as error:
        raise ConfigurationError(
            f"The {scheme}:// scheme needs a package that is not installed: {error}.",
            hint="For s3://, install nightquant[s3]; for other schemes, see fsspec's documentation.",
        ) from error
    except ValueError as error:
        raise ConfigurationError(
            f"fsspec does not support the {scheme}:// scheme: {error}.",
            hint="Correct the URI, or download the file and use its path.",
        ) from error
    with _classified():
        size = file_system.size(path)
        file = file_system.open(path, "rb")
    with file:
        yield Stream(start, size, _read_from(file, start))


def _read_from(file: IO[bytes], start: int) -> Iterator[bytes]:
    with _classified():
        file.seek(start)
        yield from iter(partial(file.read, _PIECE), b"")


@contextmanager
def _classified() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise (Broken if is_transient(error) else Refused)(f"{type(error).__name__}: {error}") from error


R = TypeVar("R")
_TIMEOUT_S = 30.0


def with_retries(download: Callable[[], R], *, retries: int = 4, first_wait_s: float = 0.5) -> R:
    """Call a function that downloads with urllib; retry the call up to `retries` times after transient failures.

    The pauses between attempts grow exponentially from `first_wait_s`. Other threads of the process must not use urllib
    during the call.

    Raises
    ------
    Broken
        The last attempt also failed with a transient error, which is the cause of this exception.
    Exception
        The function failed with a permanent error, which is raised unchanged.
    """
    for attempt in itertools.count():
        with _watching() as watch:
            try:
                return download()
            except Exception as error:
                if not watch.explains(error):
                    raise
                if attempt == retries:
                    raise Broken(f"{error} (tried {attempt + 1} times)") from error
        time.sleep(backoff_s(attempt, first_wait_s))
    raise AssertionError("unreachable")


class _Watch(OpenerDirector):
    """An opener that adds a time limit to another opener and records that opener's failures."""

    def __init__(self, opener: OpenerDirector) -> None:
        super().__init__()
        self._opener = opener
        self._failures: list[OSError] = []
        self._remaining: Callable[[], int] = int

    def open(self, fullurl: str | Request, data: Any = None, timeout: float | None = None) -> Any:
        try:
            response = self._opener.open(fullurl, data, _TIMEOUT_S)
        except OSError as error:
            self._failures.append(error)
            raise
        self._failures.clear()
        self._remaining = lambda: getattr(response, "length", 0) or 0
        return response

    def explains(self, error: Exception) -> bool:
        # http.client does not report a truncated body, so the downloading library reports a wrong checksum instead.
        is_cut_short = isinstance(error, RuntimeError) and self._remaining() > 0
        return is_cut_short or any(map(is_transient, [error, *self._failures]))


@contextmanager
def _watching() -> Iterator[_Watch]:
    before = urllib.request._opener  # type: ignore[attr-defined]
    watch = _Watch(before or urllib.request.build_opener())
    urllib.request.install_opener(watch)
    try:
        yield watch
    finally:
        urllib.request.install_opener(before)
