"""Errors that a user can cause; the command line prints them without a traceback and exits with their ``exit_code``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

from storage.messages import printable
from storage.transient import is_transient


class NightquantError(Exception):
    """An expected failure, shown to the user as is; `hint` says what to do about it.

    It is `transient` if the same work may succeed later, because a network or a server failed for now. Stages that end
    with such an error are tried again.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str = "", transient: bool = False) -> None:
        # Here, because it passes every message, and much of what messages quote comes from outside.
        self.message, self.hint = printable(message), printable(hint)
        self.transient = transient
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()

    def __reduce__(self) -> tuple[object, ...]:
        # The default drops keyword arguments, and errors cross process boundaries (Dask, Ray, process pools).
        return (partial(type(self), hint=self.hint, transient=self.transient), (self.message,))


class ConfigurationError(NightquantError):
    """The request, a setting or a workload file is wrong; nothing was run."""


class UnavailableError(ConfigurationError):
    """This machine lacks what a candidate needs, a package or instructions; the candidate is skipped."""


class InputError(NightquantError):
    """Input data or a checkpoint is missing, broken or refused."""

    exit_code = 1


class QuantizationError(NightquantError):
    """A model could not be quantized as the recipe asks."""

    exit_code = 1


class MeasurementError(NightquantError):
    """A candidate could not be measured, or its results are wrong."""

    exit_code = 1


class StoreError(NightquantError):
    """The store cannot be read or written, or something in it is broken."""


class NightRunningError(NightquantError):
    """Another night holds the store."""

    exit_code = 4


class ConflictError(NightquantError):
    """Another writer changed what is current after the caller had looked; nothing was switched."""

    exit_code = 1


class BundleError(NightquantError):
    """A bundle is incomplete, was tampered with or does not reproduce its golden outputs."""

    exit_code = 1


def first_line(error: BaseException) -> str:
    """What a library's error says, without what it adds below and without the full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def unwritable(place: object, error: OSError) -> StoreError:
    """The error for a store that cannot be written, with the operating system's reason."""
    return StoreError(
        f"The store {place} cannot be written: {error.strerror or error}.",
        hint="Free some space or fix the permissions, or choose another place with --store; the next run continues "
        "from what is already there.",
        transient=is_transient(error),
    )


@contextmanager
def writing(place: object, folder: Path) -> Iterator[None]:
    """Turn the operating system's errors at `folder`, in it or above it into that of a store that cannot be written.

    A full disk, a broken one and lost permissions surface here, whichever write they hit.
    """
    try:
        yield
    except OSError as error:
        place_of_error = Path(str(error.filename or folder))
        if place_of_error.is_relative_to(folder) or folder.is_relative_to(place_of_error):
            raise unwritable(place, error) from error
        raise
