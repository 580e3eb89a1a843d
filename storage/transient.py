"""Whether a failure is transient: a network or a server failed for now, and the same call may succeed later.

Libraries report such failures in types of their own and need not be installed, so that types are listed by name.
"""

from __future__ import annotations

import errno
import random
import socket
import ssl
from collections.abc import Iterator
from http.client import IncompleteRead

STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
# S3 gives these the status of a wrong request or of a conflict.
_CODES = frozenset({"RequestTimeout", "OperationAborted", "ConditionalRequestConflict"})
# Those that Python does not turn into a ConnectionError or a TimeoutError.
_ERRNOS = frozenset(
    {
        *(errno.EBUSY, errno.ESTALE, errno.ENOTCONN),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    }
)
_LASTING = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
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
    """Say whether the failed call may succeed later; False for a failure of an unknown kind.

    The outermost error of the chain that says anything decides: its attribute ``transient``, the status of a server's
    answer, its type or its number. A certificate that is refused stays refused, whatever the library makes of it.
    """
    chain = list(_chain(error))
    if any(isinstance(link, ssl.SSLCertVerificationError) for link in chain):
        return False
    return next((verdict for link in chain if (verdict := _verdict(link)) is not None), False)


def backoff_s(attempt: int, first_s: float) -> float:
    """Return the seconds to wait after failed attempt number 0, 1, …: growing up to a minute, with jitter."""
    return min(_LONGEST_WAIT_S, first_s * 2.0**attempt) * random.uniform(0.5, 1.0)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        reason = getattr(link, "reason", None)  # of urllib's URLError, which is not raised from it
        # Suppressed contexts as well: httpcore raises "from None".
        link = reason if isinstance(reason, BaseException) else link.__cause__ or link.__context__


def _verdict(error: BaseException) -> bool | None:
    """Say whether this error alone tells of a transient failure (True), a lasting one (False), or neither."""
    said = getattr(error, "transient", None)
    if isinstance(said, bool):
        return said
    if (answer := answer_of(error)) is not None:
        status, code = answer
        return status in STATUSES or code in _CODES
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror | IncompleteRead):
        return True
    if not _NAMES.isdisjoint(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__):
        return True
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return True
    return False if isinstance(error, _LASTING) else None


def answer_of(error: BaseException) -> tuple[int, str] | None:
    """Return the status and S3's code of the server's answer that an error stands for; None if it did not answer."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode"), response.get("Error", {}).get("Code", "")
        return found if isinstance(found[0], int) else None
    for owner, name in ((response, "status_code"), (error, "status"), (error, "status_code"), (error, "code")):
        status = getattr(owner, name, None)
        if isinstance(status, int) and 400 <= status < 600:
            return status, ""
    return None
