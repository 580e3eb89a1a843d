"""On which processors a launch runs, and the proof that a subject uses no more threads than it may.

Pinned to as many processors as it may use threads, a process cannot use more of them, whatever number of threads a
runtime has started; they would only wait for each other, and be timed so. So threads are counted that run or would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tasks.benchmark.rounds import run_block

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
    run_block(call, calls)
    after = _clocks()
    elapsed_s = time.perf_counter() - began
    used = [after[thread].minus(before.get(thread, _Clock(0, 0))) for thread in after.keys() - others]
    least_s = _LEAST_WORK * max(clock.ran_s for clock in used)
    return sum(clock.ran_s + clock.waited_s for clock in used if clock.ran_s > least_s) / elapsed_s


def excess(used: float, threads: int) -> str:
    """What is wrong with using so many threads; "" where they are allowed."""
    if used <= threads * _MARGIN:
        return ""
    return (
        f"it used {used:.1f} threads where the workload allows {threads}; its runtime must be told the number of "
        "threads when it opens the model"
    )


@dataclass(frozen=True)
class _Clock:
    """Seconds that a thread has run, and has waited for a processor."""

    ran_s: float
    waited_s: float

    def minus(self, before: _Clock) -> _Clock:
        return _Clock(self.ran_s - before.ran_s, self.waited_s - before.waited_s)


def _runnable() -> frozenset[int]:
    """The threads but the calling one that run or wait for a processor just now."""
    found = set()
    for folder in _folders():
        with suppress(OSError):  # it has just ended
            # The state follows the name, which is in brackets and may hold any character.
            if (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] == "R":
                found.add(int(folder.name))
    return frozenset(found - {threading.get_native_id()})


def _clocks() -> dict[int, _Clock]:
    """Every thread's clock; that of the process where the system tells no more."""
    if not _THREADS.is_dir():
        return {0: _Clock(time.process_time(), 0.0)}
    found: dict[int, _Clock] = {}
    for folder in _folders():
        with suppress(OSError):  # it has just ended
            thread = int(folder.name)
            # Linux's clock of a thread, as pthread_getcpuclockid makes it: exact, where the file is up to a tick old.
            found[thread] = _Clock(time.clock_gettime((~thread << 3) | 6), _waited_s(folder / "schedstat"))
    return found


def _folders() -> list[Path]:
    return list(_THREADS.iterdir()) if _THREADS.is_dir() else []


def _waited_s(schedstat: Path) -> float:
    # Kernels without scheduler statistics have no such file: only CPU time counts there.
    return int(schedstat.read_text(encoding="ascii").split()[1]) / 1e9 if schedstat.is_file() else 0.0
