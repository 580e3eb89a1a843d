"""The calling thread's alternate signal stack, as it was before a library replaced it.

Loaded, OpenVINO's CPU plugin replaces the stack on which Python's signal handlers run; unloaded, it puts back the one
that it found. Of two that overlap, the second puts back the first one's, which is freed by then: the next signal that
Python handles ends the process with SIGSEGV. So a stage worker that had opened OpenVINO models could not be ended by
SIGTERM. Seen in OpenVINO 2026.4.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager


class _Stack(ctypes.Structure):
    """``stack_t`` of Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Put back the thread's signal stack after the block, so that nothing is left to be freed under it."""
    libc = ctypes.CDLL(None)
    before = _Stack()
    libc.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        libc.sigaltstack(ctypes.byref(before), None)
