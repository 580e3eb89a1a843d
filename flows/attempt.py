"""Try something whose failure must not stop the rest of a night."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from flows.execution.signals import interruption_behind
from storage.errors import NightquantError

R = TypeVar("R")


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
        _drop_frames(error)
        return error


def reason(error: Exception) -> str:
    """Return what an error says, to go into a sentence."""
    return str(error).rstrip(".") or type(error).__name__


def _drop_frames(error: BaseException) -> None:
    """Let go of the frames that an error was raised in: Prefect keeps a task's error, and with them all they hold."""
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
