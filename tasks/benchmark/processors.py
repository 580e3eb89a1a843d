"""Choose a launch's processors, count the threads that a subject uses, and evict data from caches.

A process that may use N threads is pinned to N processors. The thread count includes threads that wait for one.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from tasks.benchmark.rounds import time_block

_TOPOLOGY = Path("/sys/devices/system/cpu")
_THREADS = Path("/proc/self/task")
# After a call, thread pools spin for a few milliseconds before sleeping.
_PATIENCE_S = 0.02
# A thread that runs for less than this fraction of the busiest thread's time is assumed only to dispatch work. On a
# busy host, a dispatching thread may wait a long time for a processor, but waiting is not work.
_LEAST_WORK = 0.1
# A subject may exceed its thread limit by this factor, because runtimes also work between calls.
_MARGIN = 1.1


def choose_processors(count: int, allowed: Sequence[int]) -> tuple[int, ...]:
    """Choose up to `count` processors, on as many different cores as possible.

    High-numbered processors are preferred, because low-numbered processors serve interrupts.
    """
    cores: dict[str, int] = {}
    for processor in sorted(allowed, reverse=True):
        siblings = _TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list"
        core = siblings.read_text(encoding="ascii").strip() if siblings.is_file() else str(processor)
        cores.setdefault(core, processor)
    primary = list(cores.values())
    siblings_of_primary = sorted(set(allowed) - set(primary), reverse=True)
    return tuple(sorted((primary + siblings_of_primary)[:count]))


def threads_used(call: Callable[[], object], calls: int) -> float:
    """Return the threads that `calls` calls keep busy: their running and waiting time divided by the elapsed time.

    Unlike CPU time, the number does not depend on other processes.
    """
    time.sleep(_PATIENCE_S)
    began = time.perf_counter()
    # Read the threads' clocks within the measured interval, so that no thread's time exceeds the elapsed time.
    before = _clocks()
    time_block(call, calls)
    after = _clocks()
    elapsed_s = time.perf_counter() - began
    used = [np.subtract(after[thread], before.get(thread, (0.0, 0.0))) for thread in after]
    least_s = _LEAST_WORK * max(ran_s for ran_s, _ in used)
    # If the virtual machine was paused, the kernel can overstate waits, so cap each thread's time at `elapsed_s`.
    return float(sum(min(ran_s + waited_s, elapsed_s) for ran_s, waited_s in used if ran_s > least_s)) / elapsed_s


def excess(used: float, threads: int) -> str:
    """Describe the problem if `used` exceeds `threads`; otherwise, return ``""``."""
    if used <= threads * _MARGIN:
        return ""
    return (
        f"the candidate used {used:.1f} threads, but the workload allows {threads}; the runtime must set the number "
        "of threads when it opens the model"
    )


def _clocks() -> dict[int, tuple[float, float]]:
    """Return each thread's running and waiting seconds; outside Linux, return only the process's CPU time."""
    if not _THREADS.is_dir():
        return {0: (time.process_time(), 0.0)}
    clocks: dict[int, tuple[float, float]] = {}
    for folder in list(_THREADS.iterdir()):
        with suppress(OSError):  # the thread has ended
            thread = int(folder.name)
            # Use the clock from ``pthread_getcpuclockid``, which is exact; ``schedstat`` lags by up to a tick.
            ran_s = time.clock_gettime((~thread << 3) | 6)
            # Kernels without scheduler statistics lack the ``schedstat`` file, so only CPU time is counted.
            waits = folder / "schedstat"
            waited_s = int(waits.read_text(encoding="ascii").split()[1]) / 1e9 if waits.is_file() else 0.0
            clocks[thread] = ran_s, waited_s
    return clocks


_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Maximum size of the eviction buffer. A virtual machine sees the host's entire last-level cache but can use only part
# of the cache. On a host that reports 480 MiB of cache, writing to a buffer of that size would take about 50 ms per
# call, and would hardly slow the timed calls further.
MOST_BYTES = 128 << 20


def cache_bytes(processor: int) -> dict[int, int]:
    """Return the sizes of a processor's data caches in bytes, by level; return ``{}`` if the sizes are unknown."""
    sizes: dict[int, int] = {}
    for index in sorted((_TOPOLOGY / f"cpu{processor}" / "cache").glob("index*")):
        kind, level, size = ((index / name).read_text(encoding="ascii").strip() for name in ("type", "level", "size"))
        if kind != "Instruction":
            number, unit = (size[:-1], _UNITS[size[-1]]) if size[-1] in _UNITS else (size, 1)
            sizes[int(level)] = int(number) * unit
    return sizes


class Eviction:
    """Buffer (``walked``, int64) of at most `most_bytes` that evicts other data from the `processors`' caches."""

    def __init__(self, processors: Sequence[int], most_bytes: int = MOST_BYTES) -> None:
        levels = [cache_bytes(processor) for processor in processors]
        # Use twice the caches' size, because caches do not replace data strictly by age or fill sets evenly.
        sufficient = 2 * max((sum(sizes.values()) for sizes in levels), default=0)
        size = min(sufficient, most_bytes) if sufficient else most_bytes
        private = max((sum(size for level, size in sizes.items() if level < 3) for sizes in levels), default=0)
        self._processors = tuple(processors)
        # Use small pages, so that writing to the buffer evicts TLB entries. The first write allocates all pages.
        memory = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            with suppress(OSError):  # the kernel does not support huge pages
                memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.walked = np.frombuffer(memory, dtype=np.int64)
        self._private = self.walked[: min(2 * private, size) // self.walked.itemsize]
        self()

    def __call__(self) -> None:
        """Write the entire buffer on the last processor; on the other processors, fill only the private caches."""
        for processor in self._processors[:-1]:
            self._walk(self._private, {processor})
        self._walk(self.walked, set(self._processors[-1:]))
        if len(self._processors) > 1:
            os.sched_setaffinity(0, self._processors)

    def _walk(self, part: np.ndarray[tuple[int], np.dtype[np.int64]], processor: set[int]) -> None:
        if len(self._processors) > 1:
            os.sched_setaffinity(0, processor)
        part += 1
