"""The timed parts of a launch: warm-up, blocks in balanced rounds, single calls, and calls with cold caches."""

from __future__ import annotations

import gc
import math
import mmap
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from tasks.measure.benchmark.messages import LaunchOrder, LaunchSpec, Profile

if TYPE_CHECKING:
    from torch import Tensor

Call = Callable[[], object]

# Plan slightly longer blocks than required, because the calls timed for the plan may have been unusually slow.
_MARGIN = 1.1
_MAX_CALLS = 10_000_000
# A block of n calls begins with n // 4 more calls, which are not timed.
_LEAD_IN = 4

# The eviction buffer. A virtual machine sees the host's entire last-level cache, but can use only part of the cache. Of
# the processors other than the last, only the private caches are filled.
_WALKED_BYTES, _PRIVATE_BYTES = 128 << 20, 8 << 20


@dataclass(frozen=True)
class Loaded:
    """A loaded subject; its calls run inside ``scope``, but the time to enter and leave ``scope`` is not counted."""

    call: Call
    golden: tuple[Tensor, ...] = ()
    scope: Callable[[], AbstractContextManager[None]] = nullcontext


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect garbage, then turn the garbage collector off for the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def time_block(call: Call, calls: int) -> float:
    """Time `calls` calls with the garbage collector off; return their total duration in seconds.

    Another subject has just run. Untimed calls first bring back the caches and clock frequency that long loops have.
    """
    with no_garbage_collection():
        _elapsed(call, max(1, calls // _LEAD_IN))
        return _elapsed(call, calls)


def warm_up(call: Call, least_calls: int, least_s: float) -> float:
    """Make at least `least_calls` calls during at least `least_s` seconds; return the mean seconds per call."""
    began = time.perf_counter()
    calls = 0
    while (elapsed := time.perf_counter() - began) < least_s or calls < max(1, least_calls):
        call()
        calls += 1
    return elapsed / calls


def warm_up_and_plan(call: Call, least_calls: int, least_s: float, block_s: float) -> int:
    """Warm up a subject; return the number of calls for a block of at least `block_s` seconds."""
    began, half = time.perf_counter(), -(-least_calls // 2)
    calls = calls_for_block(call, block_s, warm_up(call, half, least_s / 2))
    warm_up(call, half, least_s - (time.perf_counter() - began))
    return calls


def calls_for_block(call: Call, least_s: float, guess_s: float) -> int:
    """Time increasingly long blocks, beginning with calls of `guess_s`; return the calls of a block of `least_s`."""
    calls = _calls_lasting(least_s, guess_s)
    while (elapsed := time_block(call, calls)) < least_s and calls < _MAX_CALLS:
        calls = max(calls + 1, min(calls * 10, _calls_lasting(least_s, elapsed / calls)))
    return calls


def _calls_lasting(seconds: float, call_s: float) -> int:
    return min(_MAX_CALLS, max(1, math.ceil(seconds * _MARGIN / max(call_s, 1e-9))))


def _elapsed(call: Call, calls: int) -> float:
    began = time.perf_counter()
    for _ in repeat(None, calls):
        call()
    return time.perf_counter() - began


def balanced_rounds(names: Sequence[str], rounds: int, seed: int) -> list[tuple[str, ...]]:
    """Order each round at random; every second round reverses the order, so a linear drift favours no subject."""
    generator = random.Random(seed)
    order: list[tuple[str, ...]] = []
    for index in range(rounds):
        order.append(order[-1][::-1] if index % 2 else tuple(generator.sample(list(names), len(names))))
    return order


def warm_up_all(profile: Profile, order: LaunchOrder, subjects: Mapping[str, Loaded]) -> dict[str, int]:
    """Warm up every subject; return each subject's number of calls per block."""
    calls = dict(order.calls)
    for name, loaded in subjects.items():
        with loaded.scope():
            if name in calls:
                warm_up(loaded.call, profile.warm_up_calls // 2, profile.warm_up_s)
            else:
                calls[name] = warm_up_and_plan(loaded.call, profile.warm_up_calls, profile.warm_up_s, profile.block_s)
    return calls


def time_rounds(spec: LaunchSpec, subjects: Mapping[str, Loaded], calls: dict[str, int]) -> dict[str, list[float]]:
    """Time one block per subject and round; return the seconds per call in each round, by subject."""
    round_s: dict[str, list[float]] = {name: [] for name in subjects}
    for order in balanced_rounds(sorted(subjects), spec.profile.rounds, spec.seed):
        for name in order:
            loaded = subjects[name]
            with loaded.scope():
                round_s[name].append(time_block(loaded.call, calls[name]) / calls[name])
    return round_s


def time_singles(spec: LaunchSpec, order: LaunchOrder, subjects: Mapping[str, Loaded]) -> dict[str, list[float]]:
    """Time single calls of every subject except the baseline's copy; return the durations in seconds, by subject."""
    single_s: dict[str, list[float]] = {}
    if not order.single_calls:
        return single_s
    for name in [subject.key for subject in spec.subjects if subject.setting != "a/a" and subject.key in subjects]:
        loaded, samples = subjects[name], single_s.setdefault(name, [])
        with loaded.scope(), no_garbage_collection():
            end = time.perf_counter() + spec.profile.single_s
            while not samples or (len(samples) < order.single_calls and time.perf_counter() < end):
                samples.append(_elapsed(loaded.call, 1))
    return single_s


def time_cold_rounds(
    spec: LaunchSpec, order: LaunchOrder, subjects: Mapping[str, Loaded], evict: Callable[[], None], budget_s: float
) -> dict[str, list[float]]:
    """Time one cold call per subject and round; `budget_s` limits the number of rounds in the first launch only."""
    cold_s: dict[str, list[float]] = {name: [] for name in subjects}
    began = time.perf_counter()
    with no_garbage_collection():
        rounds = balanced_rounds(sorted(subjects), order.cold_rounds or spec.profile.cold_rounds, spec.seed)
        for index, names in enumerate(rounds):
            spent = order.cold_rounds is None and time.perf_counter() - began > budget_s
            if spent and index and index % 2 == 0:
                break
            for name in names:
                loaded = subjects[name]
                with loaded.scope():
                    evict()
                    _elapsed(lambda: None, 1)  # brings the timing code into the caches
                    cold_s[name].append(_elapsed(loaded.call, 1))
    return cold_s


class Eviction:
    """Buffer (``walked``, int64) that evicts other data from the `processors`' caches."""

    def __init__(self, processors: Sequence[int], size: int = _WALKED_BYTES) -> None:
        self._processors = tuple(processors)
        # Use small pages, so that writing to the buffer evicts TLB entries. The first write allocates all pages.
        memory = mmap.mmap(-1, size)
        with suppress(OSError):  # the kernel does not support huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.walked = np.frombuffer(memory, dtype=np.int64)
        self()

    def __call__(self) -> None:
        """Write the entire buffer on the last processor; on the other processors, fill only the private caches."""
        for processor in self._processors[:-1]:
            os.sched_setaffinity(0, {processor})
            self.walked[: _PRIVATE_BYTES // 8] += 1
        if len(self._processors) > 1:
            os.sched_setaffinity(0, self._processors[-1:])
        self.walked += 1
        if len(self._processors) > 1:
            os.sched_setaffinity(0, self._processors)
