"""Cold caches: what was in them is pushed out by other data, as by the work that a service does between two calls."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

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
