"""Timing of blocks of calls, and of single calls, with the garbage collector off."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat

Call = Callable[[], object]

# Blocks are planned a little longer than required: the calls that they are planned by may have run at a slow moment.
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


def run_block(call: Call, calls: int) -> None:
    """Make `calls` calls as a timed block does."""
    with no_garbage_collection():
        _elapsed(call, calls)


def time_cold_call(call: Call, evict: Callable[[], None]) -> float:
    """Seconds of one call after `evict`, which is not part of them; the code that takes the time has run since."""
    evict()
    _elapsed(_nothing, 1)
    return _elapsed(call, 1)


def time_single_calls(call: Call, most: int, budget_s: float) -> list[float]:
    """Seconds of up to `most` single calls, as many as fit into `budget_s`; at least one."""
    samples: list[float] = []
    with no_garbage_collection():
        end = time.perf_counter() + budget_s
        while not samples or (len(samples) < most and time.perf_counter() < end):
            samples.append(_elapsed(call, 1))
    return samples


def warm_up(call: Call, least_calls: int, least_s: float) -> float:
    """Call until both minima are reached; return the mean seconds of these calls."""
    began = time.perf_counter()
    calls = 0
    while (elapsed := time.perf_counter() - began) < least_s or calls < max(1, least_calls):
        call()
        calls += 1
    return elapsed / calls


def warm_up_and_plan(call: Call, least_calls: int, least_s: float, block_s: float) -> int:
    """Warm up, and find on the way how many calls last at least `block_s`; the blocks timed for that warm up too."""
    began, half = time.perf_counter(), -(-least_calls // 2)
    calls = calls_for_block(call, block_s, warm_up(call, half, least_s / 2))
    warm_up(call, half, least_s - (time.perf_counter() - began))
    return calls


def calls_for_block(call: Call, least_s: float, guess_s: float) -> int:
    """Find, by timing growing blocks, how many calls last at least `least_s` (blocked autorange).

    The method is that of ``torch.utils.benchmark.Timer.blocked_autorange``, but the first block has as many calls as
    `guess_s` per call demands, and the next ones grow by what is missing instead of by tenfold.
    """
    calls = _calls_lasting(least_s, guess_s)
    while (elapsed := time_block(call, calls)) < least_s and calls < _MAX_CALLS:
        calls = max(calls + 1, min(calls * 10, _calls_lasting(least_s, elapsed / calls)))
    return calls


def _calls_lasting(seconds: float, call_s: float) -> int:
    return min(_MAX_CALLS, max(1, math.ceil(seconds * _MARGIN / max(call_s, 1e-9))))


def _nothing() -> None:
    pass


def _elapsed(call: Call, calls: int) -> float:
    began = time.perf_counter()
    for _ in repeat(None, calls):
        call()
    return time.perf_counter() - began
