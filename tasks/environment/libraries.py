"""Isolate libraries: report each error on one line, and keep the libraries' messages out of the run's output."""

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
from pathlib import Path
from traceback import walk_tb
from typing import IO, Any, ClassVar, TextIO

from storage.errors import NightquantError, is_transient
from tasks.environment.user_code import is_users_file

_LONGEST = 300
_NOTED_BYTES = 4000
_DEBUG = "--debug shows the traceback."


class LibraryError(NightquantError):
    """An unexpected error in a library, or a defect in nightquant; ``__cause__`` contains the traceback."""

    exit_code: ClassVar[int] = 1

    def in_full(self) -> str:
        """Return the tracebacks of the error and its causes, including notes."""
        return "".join(traceback.format_exception(self))


def in_one_line(error: BaseException) -> str:
    """Return an error's type and its message, which is cut after the first line that does not end with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A heading such as ``Error(s) in loading state_dict for Net:`` is useless without the next line.
    end = next((number for number, line in enumerate(lines, 1) if not line.endswith(":")), len(lines))
    text = " ".join(lines[:end]).rstrip(".:")
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place_of(error: BaseException) -> str:
    """Return the module and line of the user's code, such as `` in module 0 (Layer), net.py, line 7``."""
    modules: list[Any] = []
    line, places = "", []
    cause: BaseException | None = error
    while cause is not None:
        for frame, number in walk_tb(cause.__traceback__):
            owner = frame.f_locals.get("self")
            # Only models have this method; this module must not import torch.
            if frame.f_code.co_name == "forward" and hasattr(owner, "named_modules"):
                modules.append(owner)
            if is_users_file(frame.f_code.co_filename):
                line = f"{Path(frame.f_code.co_filename).name}, line {number}"
        cause = cause.__cause__
    for path, module in modules[0].named_modules() if modules else ():
        if module is modules[-1] and path:
            places.append(f"module {path} ({type(module).__name__})")
    places += [line] if line else []
    return f" in {', '.join(places)}" if places else ""


@contextmanager
def reported_as(action: str, hint: str = _DEBUG) -> Iterator[None]:
    """Convert an unexpected error in the block to a `LibraryError` with the failed action, reason and place."""
    try:
        yield
    except NightquantError:
        raise
    except (Exception, SystemExit) as error:
        raise library_error(action, error, hint) from error


def library_error(action: str, error: BaseException, hint: str = _DEBUG) -> LibraryError:
    """Return the error that `reported_as` raises for `error`."""
    return LibraryError(
        f"{action}: {in_one_line(error)}{place_of(error)}.",
        hint=hint,
        transient=is_transient(error),
    )


@contextmanager
def contained(*, passed_on: bool = False) -> Iterator[None]:
    """Suppress the block's printed text, logs and warnings, including text that native code prints.

    Warnings about the user's own files are shown. The text becomes a note of an error, or is written to standard error
    if the block succeeds and `passed_on` is true. The redirection affects the entire process.
    """
    with tempfile.TemporaryFile() as printed:
        try:
            with _printing_to(printed) as stderr, _warning_at(stderr), _no_logs(logging.CRITICAL):
                yield
        except BaseException as error:
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - _NOTED_BYTES))
            if text := printed.read().decode(errors="replace").strip():
                error.add_note(f"Printed meanwhile:\n{text}")
            raise
        if passed_on:
            printed.seek(0)
            sys.stderr.write(printed.read().decode(errors="replace"))


@contextmanager
def _printing_to(printed: IO[bytes]) -> Iterator[TextIO]:
    _flush()
    saved = os.dup(1), os.dup(2)
    with (
        open(saved[1], "w", closefd=False) as stderr,
        open(printed.fileno(), "w", buffering=1, closefd=False, errors="replace") as here,
    ):
        try:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            # Python's own streams may already be redirected to other files.
            with redirect_stdout(here), redirect_stderr(here):
                yield stderr
        finally:
            _flush()
            for number, descriptor in enumerate(saved, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)


@contextmanager
def _warning_at(stderr: TextIO) -> Iterator[None]:
    """Write warnings about the user's own files to a stream, and drop all other warnings."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            yield
        finally:
            for entry in caught:
                if is_users_file(entry.filename):
                    stderr.write(
                        warnings.formatwarning(entry.message, entry.category, entry.filename, entry.lineno, entry.line)
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


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress output, logs and warnings from exporters, quantizers and compilers."""
    with (
        _no_logs(logging.WARNING),
        warnings.catch_warnings(action="ignore"),
        redirect_stdout(StringIO()),
        redirect_stderr(StringIO()),
    ):
        yield
