"""Opening a remote file from some byte on, by scheme: HTTP through httpx, all else through fsspec."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from storage.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx

_PIECE = 1 << 20
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class Broken(Exception):  # noqa: N818
    """The transfer failed in a way that may pass: try again."""


class Refused(Exception):  # noqa: N818
    """The file cannot be had, however often it is tried."""


@dataclass(frozen=True)
class Stream:
    """Bytes of a remote file from `start` on.

    ``total`` is the length of the whole file where it is known; ``version`` names its version where the server does,
    so that a later part is asked for from the same version.
    """

    start: int
    total: int | None
    version: str
    pieces: Iterator[bytes]


def open_stream(uri: str, start: int, version: str = "") -> AbstractContextManager[Stream]:
    """Open a remote file at byte `start`; what comes may begin at 0 all the same, as :attr:`Stream.start` tells.

    Raises
    ------
    ConfigurationError
        The scheme is not known, not allowed, or its package is not installed.
    Broken, Refused
        The file cannot be had now, or at all; also while its pieces are read.
    """
    return _open_http(uri, start, version) if urlsplit(uri).scheme in ("http", "https") else _open_fsspec(uri, start)


def check_http(uri: str) -> None:
    """Refuse plain HTTP to anywhere but this machine.

    Raises
    ------
    ConfigurationError
        It would go over the network unprotected.
    """
    parts = urlsplit(uri)
    if parts.scheme != "https" and not _is_loopback(parts.hostname or ""):
        raise ConfigurationError(
            f"{parts.scheme}://{parts.hostname}{parts.path}: plain HTTP is allowed to this machine only.",
            hint="Use https.",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def _open_http(uri: str, start: int, version: str) -> Iterator[Stream]:
    import httpx

    check_http(uri)
    headers = {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version:
            headers["If-Range"] = version
    # Redirects are requests too, and each is held to the same rule. A proxy never leads to this machine.
    hooks = {"request": [lambda request: check_http(str(request.url))]}
    own = _is_loopback(urlsplit(uri).hostname or "")
    try:
        with (
            httpx.Client(follow_redirects=True, timeout=30, event_hooks=hooks, trust_env=not own) as client,
            client.stream("GET", uri, headers=headers) as response,
        ):
            stream = _http_stream(response, start)
            if stream is not None:
                yield stream
                return
        # The server's file is shorter than what is here: another version, so begin anew.
        with _open_http(uri, 0, "") as stream:
            yield stream
    except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.TooManyRedirects) as error:
        raise Refused(str(error)) from error
    except httpx.TransportError as error:
        raise Broken(str(error) or type(error).__name__) from error


def _http_stream(response: httpx.Response, start: int) -> Stream | None:
    """The answer's bytes, or None where the server has nothing from `start` on."""
    status = response.status_code
    tag = response.headers.get("ETag", "")
    version = "" if tag.startswith("W/") else tag
    # Pieces as they come: gathered ones would be lost when the connection breaks.
    if status == 200:
        length = response.headers.get("Content-Length", "")
        return Stream(0, int(length) if length.isdecimal() else None, version, response.iter_raw())
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if status == 206 and span is not None and int(span[1]) == start:
        total = None if span[2] == "*" else int(span[2])
        return Stream(start, total, version, response.iter_raw())
    if status == 416:
        # There is nothing behind what is here: either it is whole, which its SHA-256 tells, or it is another file.
        whole = re.fullmatch(r"bytes \*/(\d+)", response.headers.get("Content-Range", ""))
        if whole is not None and int(whole[1]) == start:
            return Stream(start, start, version, iter(()))
        return None
    reason = f"the server answered {status} {response.reason_phrase}".rstrip()
    raise Broken(reason) if status in _TRY_AGAIN or status == 206 else Refused(reason)


@contextmanager
def _open_fsspec(uri: str, start: int) -> Iterator[Stream]:
    import fsspec

    scheme = urlsplit(uri).scheme
    try:
        file_system, path = fsspec.core.url_to_fs(uri)
    except ImportError as error:
        raise ConfigurationError(
            f"{scheme}:// needs a package that is not installed: {error}.",
            hint="For s3:// install nightquant[s3]; for others what fsspec's documentation names.",
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{scheme}:// is no scheme that fsspec knows: {error}.") from error
    with _named_failures():
        size = file_system.size(path)
        file = file_system.open(path, "rb")
    with file:
        begin = start if size is None or start <= size else 0
        yield Stream(begin, size, "", _read_from(file, begin))


def _read_from(file: IO[bytes], start: int) -> Iterator[bytes]:
    with _named_failures():
        file.seek(start)
        while piece := file.read(_PIECE):
            yield piece


@contextmanager
def _named_failures() -> Iterator[None]:
    """Tell failures that may pass from those that will not."""
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
