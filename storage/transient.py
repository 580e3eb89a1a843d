"""Decide whether a failure is transient: if a network or a server failed, the same call may succeed later.

Error types are listed by name, because the libraries that define them may not be installed.
"""

from __future__ import annotations

import errno
import random
import socket
import ssl
from collections.abc import Iterator
from http.client import IncompleteRead

STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
# S3 reports these transient errors with status 400 or 409, although these statuses usually indicate permanent errors.
_CODES = frozenset({"RequestTimeout", "OperationAborted", "ConditionalRequestConflict"})
# Python maps these error numbers to neither `ConnectionError` nor `TimeoutError`.
_ERRNOS = frozenset(
    {
        *(errno.EBUSY, errno.ESTALE, errno.ENOTCONN),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    }
)
_PERMANENT = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_NAMES = frozenset(
    {
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
        "botocore.exceptions.HTTPClientError",
        "botocore.parsers.ResponseParserError",
        "ftplib.error_temp",
        "httpx.TransportError",
        "requests.exceptions.ChunkedEncodingError",
        "requests.exceptions.ConnectionError",
        "urllib3.exceptions.ProtocolError",
    }
)
_LONGEST_WAIT_S = 60.0


def is_transient(error: BaseException) -> bool:
    """Return whether the failed call may succeed later; return False if the kind of failure is unknown.

    The outermost error that can be classified determines the result. An error is classified by its ``transient``
    attribute, its type, its error number or the server's status code. A rejected certificate is never transient.
    """
    chain = list(_chain(error))
    if any(isinstance(link, ssl.SSLCertVerificationError) for link in chain):
        return False
    return next((verdict for link in chain if (verdict := _verdict(link)) is not None), False)


def backoff_s(attempt: int, first_s: float) -> float:
    """Return a random number of seconds to wait after a failed attempt; attempts are counted from 0.

    The waits grow exponentially, up to a minute.
    """
    return min(_LONGEST_WAIT_S, first_s * 2.0**attempt) * random.uniform(0.5, 1.0)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        reason = getattr(link, "reason", None)  # urllib's URLError stores its cause in ``reason``
        # Follow suppressed contexts too, because httpcore raises errors ``from None``.
        link = reason if isinstance(reason, BaseException) else link.__cause__ or link.__context__


def _verdict(error: BaseException) -> bool | None:
    """Classify one error: True for a transient failure, False for a permanent one, None if unknown."""
    flag = getattr(error, "transient", None)
    if isinstance(flag, bool):
        return flag
    if (answer := answer_of(error)) is not None:
        status, code = answer
        return status in STATUSES or code in _CODES
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror | IncompleteRead):
        return True
    if not _NAMES.isdisjoint(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__):
        return True
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return True
    return False if isinstance(error, _PERMANENT) else None


def answer_of(error: BaseException) -> tuple[int, str] | None:
    """Return the HTTP status and S3's error code from a server's response, or None if there was no response."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return (status, response.get("Error", {}).get("Code", "")) if isinstance(status, int) else None
    for owner, name in ((response, "status_code"), (error, "status"), (error, "status_code"), (error, "code")):
        status = getattr(owner, name, None)
        if isinstance(status, int) and 400 <= status < 600:
            return status, ""
    return None
