"""On which processors a launch runs, and the proof that a subject takes no more of them than it may.

Pinned to as many processors as it may use threads, a process cannot use more, whatever number of threads a runtime has
started; they would only wait for each other, and be timed so. What a subject takes is therefore measured while every
processor of the host is open to it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tasks.benchmark.blocks import run_block

_TOPOLOGY = Path("/sys/devices/system/cpu")
_THREADS = Path("/proc/self/task")
# Pools of threads spin for some milliseconds after a call before they sleep. Whoever still does after `_PATIENCE_S`
# will not stop, and is measured for as long again.
_SLICE_S, _PATIENCE_S, _QUIET = 0.005, 0.1, 0.02
_TRIES = 3
# For work of a runtime's own that is far from a thread's. The clocks themselves need none, see `_busy`.
_MARGIN = 1.1


def choose_processors(count: int, allowed: Sequence[int]) -> tuple[int, ...]:
    """Choose up to `count` of the allowed processors: the highest numbers first, one per physical core first.

    Low numbers tend to serve interrupts; two hardware threads of one core share its arithmetic units.
    """
    cores: dict[str, int] = {}
    for processor in sorted(allowed, reverse=True):
        siblings = _TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list"
        core = siblings.read_text(encoding="ascii").strip() if siblings.is_file() else str(processor)
        cores.setdefault(core, processor)
    alone = list(cores.values())
    sharing = sorted(set(allowed) - set(alone), reverse=True)
    return tuple(sorted((alone + sharing)[:count]))


@contextmanager
def open_to(processors: Sequence[int]) -> Iterator[None]:
    """Let every thread of this process run on `processors`; afterwards each on those that it was on before.

    Nothing happens where `processors` is empty, as on systems that do not say.
    """
    if not processors:
        yield
        return
    before = {thread: os.sched_getaffinity(thread) for thread in _threads()}
    _place({thread: set(processors) for thread in before})
    try:
        yield
    finally:
        _place({thread: before.get(thread, before[os.getpid()]) for thread in _threads()})


def idle_processors() -> float:
    """How many processors this process keeps busy while nobody calls anything; pools may first stop spinning."""
    end = time.perf_counter() + _PATIENCE_S
    while time.perf_counter() < end:
        if _busy(partial(time.sleep, _SLICE_S)) < _QUIET:
            return 0.0
    return _busy(partial(time.sleep, _PATIENCE_S))


def processors_used(call: Callable[[], object], calls: int, own: float) -> float:
    """How many processors `calls` calls keep busy: this process's CPU seconds ÷ seconds.

    Of what runs in the background, only the subject's `own` is charged to it (what it keeps busy while nobody calls
    it). Where others have something there, the least of several tries counts, since what they do cannot be told apart
    to the last percent; otherwise the most, since other processes can only take processors away.
    """
    others = [max(0.0, idle_processors() - own) for _ in range(_TRIES)]
    used = [max(0.0, _busy(partial(run_block, call, calls)) - rest) for rest in others]
    return min(used) if any(others) else max(used)


def excess(used: float, threads: int) -> str:
    """What is wrong with using so many processors; "" where that is no more than `threads` allow."""
    if used <= threads * _MARGIN:
        return ""
    return (
        f"it used {used:.1f} processors where the workload allows {threads}; its runtime must be told the number of "
        "threads when it opens the model"
    )


def _busy(work: Callable[[], object]) -> float:
    # The processors' clock is read within the other's interval: one thread never counts as more than one processor.
    began, before = time.perf_counter(), time.process_time()
    work()
    used_s = time.process_time() - before
    return used_s / (time.perf_counter() - began)


def _threads() -> list[int]:
    return [int(entry.name) for entry in _THREADS.iterdir()] if _THREADS.is_dir() else [os.getpid()]


def _place(where: dict[int, set[int]]) -> None:
    for thread, processors in where.items():
        with suppress(OSError):  # it has just ended, or a sandbox forbids it
            os.sched_setaffinity(thread, processors)
