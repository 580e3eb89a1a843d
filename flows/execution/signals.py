"""Interruptions of a night: SIGTERM unwinds it like Control-C, while the failure of one part does not stop the others.

Prefect's exceptions are resolved by name because the command line handles signals without importing Prefect.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pkgutil import resolve_name
from types import FrameType
from typing import TypeVar

from storage.errors import NightquantError

R = TypeVar("R")
Handler = Callable[[int, FrameType | None], None] | signal.Handlers


class Terminated(BaseException):
    """SIGTERM arrived; like `KeyboardInterrupt`, it is not caught by ``except Exception``."""


def interruption_behind(error: BaseException) -> BaseException | None:
    """Return the interruption that caused `error`, or None.

    A signal's handler may run in a Python function that C code has called. If the C code does not expect an exception,
    CPython raises SystemError instead. Such an error must not be mistaken for a failed stage, or the night would go on.
    """
    interruptions = (KeyboardInterrupt, Terminated, resolve_name("prefect.exceptions:ExternalSignal"))
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, interruptions):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def attempt(what: str, do: Callable[[], R]) -> R | Exception:
    """Return the result of `do`, or the exception that it raised, which the caller must report; raise interruptions.

    The traceback of a defect is logged with the action `what`. The message of a `NightquantError` needs no traceback.
    """
    try:
        return do()
    except Exception as error:
        if interruption_behind(error) is not None:
            raise
        if not isinstance(error, NightquantError):
            logging.getLogger(__name__).error("%s failed", what, exc_info=error)
        # Prefect keeps a task's error, whose traceback would keep its frames and their objects alive.
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
    """Handle signals in the block if this is the main thread: other threads cannot, and receive none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def unwinding_on_sigterm() -> AbstractContextManager[None]:
    """Raise `Terminated` in the main thread when SIGTERM arrives.

    While a flow runs, Prefect replaces the handler, reports the run as crashed, and then passes the signal on to the
    previous handler. Without this handler, the process would then die without a message.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    return _handling(terminate, signal.SIGTERM)


def ignoring_interruptions() -> AbstractContextManager[None]:
    """Ignore SIGTERM and Control-C in the block, which does the last work after an interruption."""
    return _handling(signal.SIG_IGN, signal.SIGTERM, signal.SIGINT)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGTERM in the block, and convert it at the end to the exception Prefect expects.

    Native code that waits, such as Ray's, passes on `KeyboardInterrupt` and drops other exceptions. A night on a
    cluster would otherwise ignore SIGTERM until its benchmark ends.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    try:
        with _handling(interrupt, signal.SIGTERM):
            yield
    except BaseException as error:
        if received and isinstance(interruption_behind(error), KeyboardInterrupt):
            raise resolve_name("prefect.exceptions:TerminationSignal")(signal=signal.SIGTERM) from None
        raise
