"""Downloads that a library makes with urllib, without retries and without a time limit.

Such a library may hide what happened: torchvision turns failures into a `RuntimeError` with a text. So urllib is
watched.
"""

from __future__ import annotations

import itertools
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.request import OpenerDirector, Request

from storage.remote import Broken
from storage.transient import backoff_s, is_transient

R = TypeVar("R")
_TIMEOUT_S = 30.0


def with_retries(download: Callable[[], R], *, retries: int = 4, first_wait_s: float = 0.5) -> R:
    """Call a function that downloads with urllib, up to `retries` times again after a transient failure.

    Pauses grow exponentially from `first_wait_s`. Other threads of the process must not use urllib meanwhile.

    Raises
    ------
    Broken
        The last failure was transient as well; it is the cause.
    Exception
        The failure is not transient: whatever the function raised.
    """
    for attempt in itertools.count():
        with _watching() as watch:
            try:
                return download()
            except Exception as error:
                if not watch.explains(error):
                    raise
                if attempt == retries:
                    raise Broken(f"{error} (tried {attempt + 1} times)") from error
        time.sleep(backoff_s(attempt, first_wait_s))
    raise AssertionError("unreachable")


class _Watch(OpenerDirector):
    """Opens URLs as another opener does, with a time limit, and remembers how that went."""

    def __init__(self, opener: OpenerDirector) -> None:
        super().__init__()
        self._opener = opener
        self._failures: list[OSError] = []
        self._remaining: Callable[[], int] = int

    def open(self, fullurl: str | Request, data: Any = None, timeout: float | None = None) -> Any:
        """Open a URL."""
        try:
            response = self._opener.open(fullurl, data, _TIMEOUT_S)
        except OSError as error:
            self._failures.append(error)
            raise
        self._failures.clear()
        self._remaining = lambda: getattr(response, "length", 0) or 0
        return response

    def explains(self, error: Exception) -> bool:
        """Say whether a transient failure is behind what the download raised."""
        # A body that is cut short is no error to http.client; its reader then finds a wrong checksum.
        is_cut_short = isinstance(error, RuntimeError) and self._remaining() > 0
        return is_cut_short or any(map(is_transient, [error, *self._failures]))


@contextmanager
def _watching() -> Iterator[_Watch]:
    """Have urllib open every URL through a `_Watch` in the block."""
    before = urllib.request._opener  # type: ignore[attr-defined]
    watch = _Watch(before or urllib.request.build_opener())
    urllib.request.install_opener(watch)
    try:
        yield watch
    finally:
        urllib.request.install_opener(before)
