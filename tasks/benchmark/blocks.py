"""Timing of blocks of calls, and of single calls, with the garbage collector off."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat

Call = Callable[[], object]

# Blocks are made a little longer than asked for: the speed at which they were planned may have been a slow moment's.
_MARGIN = 1.1
_MAX_CALLS = 10_000_000


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Turn the garbage collector off in the block; what there is to collect is collected before."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def time_block(call: Call, calls: int) -> float:
    """Seconds that `calls` calls take together, with the garbage collector off."""
    with no_garbage_collection():
        return _elapsed(call, calls)


def time_single_calls(call: Call, most: int, budget_s: float) -> list[float]:
    """Seconds of up to `most` single calls, as many as fit into `budget_s`; at least one."""
    samples: list[float] = []
    with no_garbage_collection():
        end = time.perf_counter() + budget_s
        while not samples or (len(samples) < most and time.perf_counter() < end):
            samples.append(_elapsed(call, 1))
    return samples


def warm_up(call: Call, least_calls: int, least_s: float) -> float:
    """Call until both minima are reached; give the seconds of one of the later calls."""
    began = time.perf_counter()
    calls, last = 0, 0.0
    while calls < least_calls or time.perf_counter() - began < least_s:
        last = _elapsed(call, 1)
        calls += 1
    return last


def calls_for_block(call: Call, least_s: float) -> int:
    """Find, by timing growing blocks, how many calls last at least `least_s` (blocked autorange).

    The method is that of ``torch.utils.benchmark.Timer.blocked_autorange``, with growth by what is missing instead of
    by tenfold, so that slow calls are not repeated more than they must be.
    """
    calls = 1
    while (elapsed := time_block(call, calls)) < least_s and calls < _MAX_CALLS:
        missing = least_s * _MARGIN / max(elapsed, 1e-9)
        calls = min(_MAX_CALLS, max(calls + 1, math.ceil(calls * min(missing, 10.0))))
    return calls


def _elapsed(call: Call, calls: int) -> float:
    began = time.perf_counter()
    for _ in repeat(None, calls):
        call()
    return time.perf_counter() - began
