"""The processors that a launch runs on, their caches, and the proof that a subject uses no more threads than it may.

Pinned to as many processors as it may use threads, a process cannot use more of them: further threads only wait. So
threads are counted that run or wait. Caches are cold once other data, as of a service's other work, filled them.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from tasks.benchmark.rounds import time_block

_TOPOLOGY = Path("/sys/devices/system/cpu")
_THREADS = Path("/proc/self/task")
# Pools of threads spin for some milliseconds after a call before they sleep. Whoever still does after `_PATIENCE_S`
# will not stop.
_SLICE_S, _PATIENCE_S = 0.005, 0.1
# A thread that runs less than this share of what the busiest one does hands out work and waits for it: on a busy
# machine it may wait long for a processor without that being work.
_LEAST_WORK = 0.1
# For what a runtime does between calls. The clocks themselves need none.
_MARGIN = 1.1


def choose_processors(count: int, allowed: Sequence[int]) -> tuple[int, ...]:
    """Choose up to `count` processors: one per core first, and high numbers, because low ones serve interrupts."""
    cores: dict[str, int] = {}
    for processor in sorted(allowed, reverse=True):
        siblings = _TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list"
        core = siblings.read_text(encoding="ascii").strip() if siblings.is_file() else str(processor)
        cores.setdefault(core, processor)
    alone = list(cores.values())
    sharing = sorted(set(allowed) - set(alone), reverse=True)
    return tuple(sorted((alone + sharing)[:count]))


def background_threads() -> frozenset[int]:
    """The threads that are busy while nobody calls anything; pools may first stop spinning."""
    end, busy = time.perf_counter() + _PATIENCE_S, _runnable()
    while busy and time.perf_counter() < end:
        time.sleep(_SLICE_S)
        busy &= _runnable()
    return busy


def threads_used(call: Callable[[], object], calls: int, own: frozenset[int] = frozenset()) -> float:
    """How many threads `calls` calls keep busy: the seconds that threads run or wait for a processor ÷ seconds.

    Unlike CPU seconds alone, this does not depend on what else runs on the processors, nor on how many there are.

    Parameters
    ----------
    own
        The subject's background threads; the others are those of other subjects, and not charged to this one.
    """
    others = background_threads() - own
    began = time.perf_counter()
    # Threads' clocks are read within this clock's interval: none can come out above 1.
    before = _clocks()
    time_block(call, calls)
    after = _clocks()
    elapsed_s = time.perf_counter() - began
    used = [np.subtract(after[thread], before.get(thread, (0.0, 0.0))) for thread in after.keys() - others]
    least_s = _LEAST_WORK * max(ran_s for ran_s, _ in used)
    return float(sum(ran_s + waited_s for ran_s, waited_s in used if ran_s > least_s)) / elapsed_s


def excess(used: float, threads: int) -> str:
    """What is wrong with using so many threads; "" where they are allowed."""
    if used <= threads * _MARGIN:
        return ""
    return (
        f"it used {used:.1f} threads where the workload allows {threads}; its runtime must be told the number of "
        "threads when it opens the model"
    )


def _runnable() -> frozenset[int]:
    found = set()
    for folder in _folders():
        with suppress(OSError):  # it has just ended
            # The state follows the name, which is in brackets and may hold any character.
            if (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] == "R":
                found.add(int(folder.name))
    return frozenset(found - {threading.get_native_id()})


def _clocks() -> dict[int, tuple[float, float]]:
    """Seconds that each thread has run and has waited for a processor; only those of the process beyond Linux."""
    if not _THREADS.is_dir():
        return {0: (time.process_time(), 0.0)}
    found: dict[int, tuple[float, float]] = {}
    for folder in _folders():
        with suppress(OSError):  # it has just ended
            thread = int(folder.name)
            # Linux's clock of a thread, as pthread_getcpuclockid makes it: exact, where the file is up to a tick old.
            ran_s = time.clock_gettime((~thread << 3) | 6)
            # Kernels without scheduler statistics have no such file: only CPU time counts there.
            waits = folder / "schedstat"
            waited_s = int(waits.read_text(encoding="ascii").split()[1]) / 1e9 if waits.is_file() else 0.0
            found[thread] = ran_s, waited_s
    return found


def _folders() -> list[Path]:
    return list(_THREADS.iterdir()) if _THREADS.is_dir() else []


_PROCESSORS = Path("/sys/devices/system/cpu")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# The most that is walked. A virtual machine is told of its host's whole last level, of which it has a share: going over
# 480 MiB would take some 50 ms a call, and `python -m benchmarks.cold_calls` prints how little more that pushes out.
MOST_BYTES = 128 << 20


def cache_bytes(processor: int) -> dict[int, int]:
    """Bytes of a processor's data caches by level, as the system reports them; {} where it does not."""
    found: dict[int, int] = {}
    for index in sorted((_PROCESSORS / f"cpu{processor}" / "cache").glob("index*")):
        kind, level, size = ((index / name).read_text(encoding="ascii").strip() for name in ("type", "level", "size"))
        if kind != "Instruction":
            number, unit = (size[:-1], _UNITS[size[-1]]) if size[-1] in _UNITS else (size, 1)
            found[int(level)] = int(number) * unit
    return found


class Eviction:
    """Pushes everything out of the caches of some processors, up to the last level's share.

    Parameters
    ----------
    processors
        Those that the timed calls run on; () where the system does not say.
    most_bytes
        The most that is walked.

    Attributes
    ----------
    walked
        The buffer, int64.
    """

    def __init__(self, processors: Sequence[int], most_bytes: int = MOST_BYTES) -> None:
        levels = [cache_bytes(processor) for processor in processors]
        # Twice what caches hold: their replacement is not strictly by age, and their sets are not filled evenly.
        wanted = 2 * max((sum(found.values()) for found in levels), default=0)
        size = min(wanted, most_bytes) if wanted else most_bytes
        private = max((sum(size for level, size in found.items() if level < 3) for found in levels), default=0)
        self._processors = tuple(processors)
        # Small pages: going over them pushes addresses out of the TLB as well. Written once now, so that no page is
        # still missing when it is walked.
        memory = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages
                memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.walked = np.frombuffer(memory, dtype=np.int64)
        self._private = self.walked[: min(2 * private, size) // self.walked.itemsize]
        self()

    def __call__(self) -> None:
        """Read and write the buffer, on each processor as much as its own caches need."""
        for processor in self._processors[:-1]:
            self._walk(self._private, {processor})
        self._walk(self.walked, set(self._processors[-1:]))
        if len(self._processors) > 1:
            os.sched_setaffinity(0, self._processors)

    def _walk(self, part: np.ndarray[tuple[int], np.dtype[np.int64]], processor: set[int]) -> None:
        if len(self._processors) > 1:
            os.sched_setaffinity(0, processor)
        part += 1
