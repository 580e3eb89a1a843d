"""SIGTERM unwinds a command as Control-C does, so that what is finished is kept and nothing is left running."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """SIGTERM arrived; like `KeyboardInterrupt` it is no error, and no handler of errors may swallow it."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def unwinding_on_sigterm() -> Iterator[None]:
    """Raise `Terminated` in the main thread when SIGTERM arrives.

    Prefect replaces the handler while a flow runs, reports the run as crashed, and then sends the signal on to the
    handler that it found: without one of ours the process would die there, before it has said anything.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let no second SIGTERM or Control-C interrupt the few things that must still be done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
