"""Errors that users can cause; the command line omits the traceback and exits with the error's ``exit_code``.

Messages may quote untrusted text, so credentials are removed, control characters are escaped and long lines are
truncated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import ClassVar

from storage.transient import is_transient

_LONGEST_LINE, _LONGEST = 2000, 20_000
_SCHEME = r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)"
# Match up to the last ``@`` of the authority, because a password may contain an ``@``.
_CREDENTIALS = re.compile(_SCHEME + r"[^\s/?#]*@")
_QUERY = re.compile(_SCHEME + r"(?P<rest>[^\s?#'\"<>]*)[?#][^\s'\"<>]*")


def shown(uri: str) -> str:
    """Remove the user name, the password and the query from a URI or from chained URIs; leave plain paths unchanged.

    The query is removed because it may contain a signature.
    """
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
    """An expected failure, shown to the user without a traceback; `hint` says what to do.

    `transient` means that a network or a server failed temporarily; the run then retries the stage.
    """

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
    """Return the error for a store that is not writable; the message includes the operating system's reason."""
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
