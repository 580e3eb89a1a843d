"""Interruption of a run: SIGTERM and Control-C stop the run, but a failed stage does not."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import TypeVar

from storage.errors import NightquantError

R = TypeVar("R")
Handler = Callable[[int, FrameType | None], None] | signal.Handlers


class Terminated(BaseException):
    """Exception raised on SIGTERM; like `KeyboardInterrupt`, it is not a subclass of `Exception`."""


def interruption_behind(error: BaseException) -> BaseException | None:
    """Return the interruption that caused `error`, or None."""
    from prefect.exceptions import ExternalSignal

    # If a signal handler raises inside a function that C code has called, CPython may raise `SystemError` instead.
    interruptions = (KeyboardInterrupt, Terminated, ExternalSignal)
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, interruptions):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def attempt(what: str, do: Callable[[], R]) -> R | Exception:
    """Call `do` and return the result or the exception; re-raise interruptions."""
    try:
        return do()
    except Exception as error:
        if interruption_behind(error) is not None:
            raise
        if not isinstance(error, NightquantError):
            logging.getLogger(__name__).error("%s failed", what, exc_info=error)
        # Remove tracebacks, because Prefect keeps a task's error, and a traceback keeps frames and objects alive.
        seen: BaseException | None = error
        while seen is not None:
            seen.__traceback__ = None
            seen = seen.__cause__ or seen.__context__
        return error


def reason(error: Exception) -> str:
    """Return an error's message for use within a sentence."""
    return str(error).rstrip(".") or type(error).__name__


@contextmanager
def _handling(handler: Handler, *signals: signal.Signals) -> Iterator[None]:
    """Install `handler` for the block, but only in the main thread, because other threads do not receive signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, previous in before.items():
            if signal.getsignal(number) is handler:  # the handler may have replaced itself
                signal.signal(number, previous)


def unwinding_on_sigterm() -> AbstractContextManager[None]:
    """Raise `Terminated` in the main thread when SIGTERM arrives, also after Prefect's handler, which passes it on."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    return _handling(terminate, signal.SIGTERM)


def ignoring_interruptions() -> AbstractContextManager[None]:
    """Ignore SIGTERM and Control-C inside the block, so that the block can finish its work after an interruption."""
    return _handling(signal.SIG_IGN, signal.SIGTERM, signal.SIGINT)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGTERM; after the block, convert the exception to Prefect's `TerminationSignal`."""
    # Native code that waits may propagate `KeyboardInterrupt` but drop other exceptions.
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        # A service manager signals the worker and the run, and the worker also signals the run. A second signal would
        # interrupt the recording of the results.
        signal.signal(number, signal.SIG_IGN)
        received.append(number)
        raise KeyboardInterrupt

    try:
        with _handling(interrupt, signal.SIGTERM):
            yield
    except BaseException as error:
        if received and isinstance(interruption_behind(error), KeyboardInterrupt):
            from prefect.exceptions import TerminationSignal

            raise TerminationSignal(signal=signal.SIGTERM) from None
        raise
