"""Errors that users can cause, which the command line shows without a traceback, and which failures are transient."""

from __future__ import annotations

import errno
import random
import re
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from http.client import IncompleteRead
from pathlib import Path
from typing import ClassVar

_LONGEST_LINE, _LONGEST = 2000, 20_000
_SCHEME = r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)"
# Match up to the last ``@`` of the authority, because a password may contain an ``@``.
_CREDENTIALS = re.compile(_SCHEME + r"[^\s/?#]*@")
_QUERY = re.compile(_SCHEME + r"(?P<rest>[^\s?#'\"<>]*)[?#][^\s'\"<>]*")

_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
# S3 reports these transient errors with status 400 or 409, although these statuses usually indicate permanent errors.
_CODES = frozenset({"RequestTimeout", "OperationAborted", "ConditionalRequestConflict"})
# Python maps these error numbers to neither `ConnectionError` nor `TimeoutError`.
_ERRNOS = (
    errno.EBUSY, errno.ESTALE, errno.ENOTCONN, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
)  # fmt: skip
_PERMANENT = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
# Error types by name, because the libraries that define them may not be installed.
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


def shown(uri: str) -> str:
    """Remove the user name, the password and the query, which may contain a signature, from a URI or chained URIs."""
    without = _CREDENTIALS.sub(r"\g<scheme>", uri)
    return "::".join(_QUERY.sub(r"\g<scheme>\g<rest>", part) for part in without.split("::"))


def printable(text: str) -> str:
    """Remove credentials and queries from a message, escape unprintable characters, and truncate long lines."""
    text = _QUERY.sub(r"\g<scheme>\g<rest>", _CREDENTIALS.sub(r"\g<scheme>", text))
    escaped = "".join(
        character if character.isprintable() or character in "\n\t" else ascii(character)[1:-1] for character in text
    )
    lines = [_cut(line, _LONGEST_LINE) for line in escaped.split("\n")]
    return _cut("\n".join(lines), _LONGEST)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return text that suggests the known name closest to `name`, or ``""`` if no name is similar."""
    near = get_close_matches(name, dict.fromkeys(known), 1)
    return f' (did you mean "{near[0]}"?)' if near else ""


def _cut(text: str, longest: int) -> str:
    # Allow 50 more characters, so that truncated text is not truncated again.
    return text if len(text) <= longest + 50 else f"{text[:longest]}… ({len(text):,} characters)"


class NightquantError(Exception):
    """An expected failure; `hint` says what to do, and a run retries the stage if it is `transient`."""

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str = "", transient: bool = False) -> None:
        # Clean every message here, because many messages quote untrusted text.
        self.message, self.hint = printable(message), printable(hint)
        self.transient = transient
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()

    def __reduce__(self) -> tuple[object, ...]:
        # Dask and process pools pickle errors, but the default ``__reduce__`` drops keyword arguments.
        return (partial(type(self), hint=self.hint, transient=self.transient), (self.message,))


class ConfigurationError(NightquantError):
    """The request, a setting or a workload file is invalid; nothing was run."""


class UnavailableError(ConfigurationError):
    """This host lacks a package or CPU instructions that a candidate needs, so the run skips the candidate."""


class InputError(NightquantError):
    """Input data or a checkpoint is missing, damaged or rejected."""

    exit_code = 1


class QuantizationError(NightquantError):
    """A model could not be quantized according to the recipe."""

    exit_code = 1


class MeasurementError(NightquantError):
    """A candidate could not be measured, or its results are wrong."""

    exit_code = 1


class StoreError(NightquantError):
    """The store cannot be read or written, or part of it is damaged."""


class NightRunningError(NightquantError):
    """Another run is using the store."""

    exit_code = 4


class ConflictError(NightquantError):
    """Another writer changed the current bundle first, so the caller's change was refused."""

    exit_code = 1


class BundleError(NightquantError):
    """A bundle is incomplete or modified, or does not reproduce its golden outputs."""

    exit_code = 1


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message, without the final full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def unwritable(place: object, error: OSError) -> StoreError:
    """Return the error for a store that is not writable."""
    return StoreError(
        f"Cannot write to the store {place}: {error.strerror or error}.",
        hint="Free some disk space, fix the permissions, or choose another store with --store. The next run continues "
        "where this run stopped.",
        transient=is_transient(error),
    )


@contextmanager
def writing(place: object, folder: Path) -> Iterator[None]:
    """Convert operating-system errors about `folder`, or about a path below or above it, into a `StoreError`."""
    try:
        yield
    except OSError as error:
        place_of_error = Path(str(error.filename or folder))
        if place_of_error.is_relative_to(folder) or folder.is_relative_to(place_of_error):
            raise unwritable(place, error) from error
        raise


def is_transient(error: BaseException) -> bool:
    """Return whether a network or a server failed, so that the same call may succeed later; False if unknown.

    The outermost error that can be classified determines the result. A rejected certificate is never transient.
    """
    chain = list(_chain(error))
    if any(isinstance(link, ssl.SSLCertVerificationError) for link in chain):
        return False
    return next((verdict for link in chain if (verdict := _verdict(link)) is not None), False)


def backoff_s(attempt: int, first_s: float) -> float:
    """Return a random wait in seconds after an attempt (the first is 0); the longest wait is a minute."""
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
        return status in _STATUSES or code in _CODES
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
