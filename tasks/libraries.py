"""Libraries at arm's length: what they raise ends in one line, and what they print stays out of a night's output.

A night calls them with models that nobody has tried before, and they fail in ways that nightquant does not expect.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import IO, ClassVar, TextIO

from storage.errors import NightquantError
from storage.transient import is_transient
from tasks.user_code import is_users_file

_LONGEST = 300
_NOTED_BYTES = 4000


class LibraryError(NightquantError):
    """A library failed in a way that nobody foresaw, or nightquant has a defect. The cause has the traceback."""

    exit_code: ClassVar[int] = 1

    def in_full(self) -> str:
        """Return the tracebacks of the error and of its causes, with their notes."""
        return "".join(traceback.format_exception(self))


def in_one_line(error: BaseException) -> str:
    """Return an error's type and the first line of its message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # "Error(s) in loading state_dict for Net:" says nothing without the next line.
    end = next((number for number, line in enumerate(lines, 1) if not line.endswith(":")), len(lines))
    text = " ".join(lines[:end]).rstrip(".:")
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def reported_as(what: str, hint: str = "") -> Iterator[None]:
    """Turn whatever the block raises into one line: `what` failed, why, and what to do.

    Raises
    ------
    LibraryError
        The block raised something other than a `NightquantError`, which passes as it is.
    """
    try:
        yield
    except NightquantError:
        raise
    except (Exception, SystemExit) as error:
        raise library_error(what, error, hint) from error


def library_error(what: str, error: BaseException, hint: str = "") -> LibraryError:
    """Return what `reported_as` raises for an error."""
    return LibraryError(
        f"{what}: {in_one_line(error)}.",
        hint=f"{hint} --debug shows the traceback.".lstrip(),
        transient=is_transient(error),
    )


def hint_for(runtime: str) -> str:
    """Return what to do about a library that fails for a candidate of that runtime."""
    return f'Name the module that this is about in exclude, or take the runtime "{runtime}" out of the recipe.'


@contextmanager
def contained(*, passed_on: bool = False) -> Iterator[None]:
    """Keep what the block prints, logs and warns of out of the output, what native code prints included.

    Warnings about the user's own files are shown. An error gets the rest as a note. Without an error the rest is
    dropped, or `passed_on` to standard error. The streams belong to the whole process: use this where one stage runs.
    """
    with tempfile.TemporaryFile() as printed:
        try:
            with _printing_to(printed) as stderr, _warning_at(stderr), _no_logs(logging.CRITICAL):
                yield
        except BaseException as error:
            if text := _end_of(printed):
                error.add_note(f"Printed meanwhile:\n{text}")
            raise
        if passed_on:
            printed.seek(0)
            sys.stderr.write(printed.read().decode(errors="replace"))


@contextmanager
def _printing_to(printed: IO[bytes]) -> Iterator[TextIO]:
    _flush()
    kept = os.dup(1), os.dup(2)
    with (
        open(kept[1], "w", closefd=False) as stderr,
        open(printed.fileno(), "w", buffering=1, closefd=False, errors="replace") as here,
    ):
        try:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            # Python's streams may lead elsewhere already.
            with redirect_stdout(here), redirect_stderr(here):
                yield stderr
        finally:
            _flush()
            for number, descriptor in enumerate(kept, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)


@contextmanager
def _warning_at(stderr: TextIO) -> Iterator[None]:
    """Write warnings about the user's own files to a stream, and no others."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            yield
        finally:
            for each in caught:
                if is_users_file(each.filename):
                    stderr.write(
                        warnings.formatwarning(each.message, each.category, each.filename, each.lineno, each.line)
                    )
            stderr.flush()


@contextmanager
def _no_logs(worst: int) -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(worst)
    try:
        yield
    finally:
        logging.disable(before)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)


def _end_of(printed: IO[bytes]) -> str:
    printed.seek(0, os.SEEK_END)
    printed.seek(max(0, printed.tell() - _NOTED_BYTES))
    return printed.read().decode(errors="replace").strip()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what exporters, quantizers and compilers print, log and warn of out of a night's output, but not errors."""
    with (
        _no_logs(logging.WARNING),
        warnings.catch_warnings(action="ignore"),
        redirect_stdout(StringIO()),
        redirect_stderr(StringIO()),
    ):
        yield
