"""Read remote files, using httpx for HTTP and fsspec for all other schemes; retry downloads of other libraries."""

from __future__ import annotations

import ipaddress
import itertools
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, TypeVar
from urllib.parse import urlsplit

import fsspec

from storage.errors import ConfigurationError
from storage.transient import STATUSES, backoff_s, is_transient

_PIECE = 1 << 20
_TIMEOUT_S = 30.0


class Broken(Exception):  # noqa: N818
    """The transfer failed with a transient error and can be retried."""

    transient = True


class Refused(Exception):  # noqa: N818
    """The file is not available, and a retry would not help."""

    transient = False


@dataclass(frozen=True)
class Stream:
    """The bytes of a remote file, and their number; 0 if the number is unknown."""

    total: int
    pieces: Iterator[bytes]


def open_stream(uri: str) -> AbstractContextManager[Stream]:
    """Open a remote file; raise `Broken` or `Refused` if it is not available."""
    return _open_http(uri) if urlsplit(uri).scheme in ("http", "https") else _open_fsspec(uri)


@contextmanager
def _open_http(uri: str) -> Iterator[Stream]:
    import httpx  # import here, because httpx also imports rich and most processes never download

    # A hook checks each request, including redirects. Requests to this host never use a proxy.
    hooks = {"request": [lambda request: _check_http(str(request.url))]}
    is_own = _is_loopback(urlsplit(uri).hostname or "")
    try:
        with (
            httpx.Client(follow_redirects=True, timeout=_TIMEOUT_S, event_hooks=hooks, trust_env=not is_own) as client,
            client.stream("GET", uri, headers={"Accept-Encoding": "identity"}) as response,
        ):
            if response.status_code != 200:
                reason = f"the server answered {response.status_code} {response.reason_phrase}".rstrip()
                raise (Broken if response.status_code in STATUSES else Refused)(reason)
            yield Stream(int(response.headers.get("Content-Length", 0)), response.iter_raw())
    except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.TooManyRedirects, httpx.DecodingError) as error:
        raise Refused(str(error)) from error
    except httpx.TransportError as error:
        raise (Broken if is_transient(error) else Refused)(str(error) or type(error).__name__) from error


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
def _open_fsspec(uri: str) -> Iterator[Stream]:
    scheme = urlsplit(uri).scheme
    try:
        file_system, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"The {scheme}:// scheme cannot be used: {error}.",
            hint="For s3://, install nightquant[s3]; for other schemes, see fsspec's documentation.",
        ) from error
    with _classified():
        size = file_system.size(path)
        file = file_system.open(path, "rb")
    with file:
        yield Stream(size or 0, _pieces(file))


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with _classified():
        yield from iter(partial(file.read, _PIECE), b"")


@contextmanager
def _classified() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise (Broken if is_transient(error) else Refused)(f"{type(error).__name__}: {error}") from error


R = TypeVar("R")
# torchvision and torch.hub report network failures and truncated files only in the text of a `RuntimeError`.
_AWAY = re.compile("HTTP Error (408|425|429|5..)|urlopen error|timed out|[Cc]onnection")
_DAMAGED = re.compile("File not found or corrupted|invalid hash value")


def with_retries(download: Callable[[], R], *, retries: int = 4, first_wait_s: float = 0.5) -> R:
    """Call a function that downloads with urllib; retry the call up to `retries` times, with growing pauses.

    Raises
    ------
    Broken
        The network or the server also failed at the last attempt.
    Exception
        The function failed for another reason.
    """
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_S)  # by default, urllib waits forever
    try:
        for attempt in itertools.count():
            try:
                return download()
            except Exception as error:
                text = str(error) if isinstance(error, RuntimeError) else ""
                is_away = is_transient(error) or _AWAY.search(text)
                if not is_away and (attempt == retries or not _DAMAGED.search(text)):
                    raise
                if attempt == retries:
                    raise Broken(f"{error} (tried {attempt + 1} times)") from error
            time.sleep(backoff_s(attempt, first_wait_s))
    finally:
        socket.setdefaulttimeout(timeout)
    raise AssertionError("unreachable")
