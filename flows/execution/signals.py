"""What stops a night, and what must not: signals unwind it as Control-C does, and a failed part leaves the rest alone.

Exceptions of Prefect's are resolved by name, because the command line uses these signals without Prefect.
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
    """SIGTERM arrived; like `KeyboardInterrupt`, it passes handlers of errors."""


def interruption_behind(error: BaseException) -> BaseException | None:
    """Return the interruption that caused `error`, or None.

    A signal's handler runs between any two steps of the interpreter, also in a Python function that C code has called.
    If that code expects no exception, CPython raises SystemError in its place: an ordinary error, which would be taken
    for a failure of the stage that was awaited, and the night would go on.
    """
    interruptions = (KeyboardInterrupt, Terminated, resolve_name("prefect.exceptions:ExternalSignal"))
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, interruptions):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def attempt(what: str, do: Callable[[], R]) -> R | Exception:
    """Return the result of `do`, or the exception that it raised, which the caller has to report; interruptions pass.

    The traceback of a defect is logged as `what`; an error that a user can cause says everything in its message.
    """
    try:
        return do()
    except Exception as error:
        if interruption_behind(error) is not None:
            raise
        if not isinstance(error, NightquantError):
            logging.getLogger(__name__).error("%s failed", what, exc_info=error)
        # Prefect keeps a task's error, and with its frames all that they hold.
        seen: BaseException | None = error
        while seen is not None:
            seen.__traceback__ = None
            seen = seen.__cause__ or seen.__context__
        return error


def reason(error: Exception) -> str:
    """Return what an error says, to go into a sentence."""
    return str(error).rstrip(".") or type(error).__name__


@contextmanager
def _handling(handler: Handler, *signals: signal.Signals) -> Iterator[None]:
    """Handle signals in the block, if this is the main thread: others may not, and are sent none."""
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

    Prefect replaces the handler while a flow runs, reports the run as crashed, and then sends the signal on to the
    handler that it found: without this one the process would die there, with nothing printed.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    return _handling(terminate, signal.SIGTERM)


def undisturbed() -> AbstractContextManager[None]:
    """Ignore SIGTERM and Control-C in the block: the few things that must still be done after the first one."""
    return _handling(signal.SIG_IGN, signal.SIGTERM, signal.SIGINT)


@contextmanager
def heard_everywhere() -> Iterator[None]:
    """Let SIGTERM arrive as `KeyboardInterrupt` in the block, and leave it as the exception that Prefect expects.

    Native code that checks for signals while it waits, Ray's above all, lets that one through and drops any other: a
    night on a cluster would not hear SIGTERM for as long as a benchmark takes.
    """
    heard: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    try:
        with _handling(interrupt, signal.SIGTERM):
            yield
    except BaseException as error:
        if heard and isinstance(interruption_behind(error), KeyboardInterrupt):
            raise resolve_name("prefect.exceptions:TerminationSignal")(signal=signal.SIGTERM) from None
        raise
