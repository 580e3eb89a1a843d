"""Where this process's threads are, many thousand times a second: program counters from the kernel, without any tool.

The kernel's event ``cpu-clock`` (perf_event_open(2)) needs no counter of the processor, so that it works in virtual
machines too. Only what runs in user space is sampled.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
import sys
from types import TracebackType

from storage.errors import UnavailableError
from tasks.machine import affinity

FREQUENCY_HZ = 5000
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}  # the system call's number
# From <linux/perf_event.h>: struct perf_event_attr, the ring buffer's control page, and the record of a sample.
_SOFTWARE, _CPU_CLOCK, _SAMPLE_IP, _RECORD_SAMPLE = 1, 0, 1, 9
_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV, _FREQ = (1 << bit for bit in (0, 1, 5, 6, 10))
_ENABLE, _DISABLE = 0x2400, 0x2401
_HEAD, _TAIL = 1024, 1032
_CLOSE_ON_EXEC, _SIZE = 8, 112
_PAGES = 256  # a power of two; at 16 bytes a sample they hold more than ten seconds


class Sampler:
    """Samples this process's threads, those that are started later included, between `start` and `stop`.

    Raises
    ------
    UnavailableError
        The system does not let a process sample itself.
    """

    def __init__(self) -> None:
        self._buffers: list[tuple[int, mmap.mmap]] = []
        number = _PERF_EVENT_OPEN.get(platform.machine())
        if sys.platform != "linux" or number is None:
            raise UnavailableError("Programs are sampled on Linux on x86-64 and 64-bit Arm only.")
        library = ctypes.CDLL(None, use_errno=True)
        flags = _DISABLED | _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HV | _FREQ
        fields = struct.pack("<IIQQQQQ", _SOFTWARE, _SIZE, _CPU_CLOCK, FREQUENCY_HZ, _SAMPLE_IP, 0, flags)
        # An event that threads inherit can be mapped only if it is of one processor: one event each.
        for processor in affinity():
            event = library.syscall(
                number, ctypes.create_string_buffer(fields, _SIZE), 0, processor, -1, _CLOSE_ON_EXEC
            )
            if event < 0:
                why = os.strerror(ctypes.get_errno())
                self.close()
                raise UnavailableError(
                    f"The system does not let programs be sampled: {why}.",
                    hint="Set kernel.perf_event_paranoid to 2 or less, and allow perf_event_open in containers.",
                )
            self._buffers.append((event, mmap.mmap(event, (1 + _PAGES) * mmap.PAGESIZE)))

    def __enter__(self) -> Sampler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Begin to sample."""
        for event, buffer in self._buffers:
            buffer[_TAIL : _TAIL + 8] = buffer[_HEAD : _HEAD + 8]
            fcntl.ioctl(event, _ENABLE, 0)

    def stop(self) -> list[int]:
        """End sampling; the program counters that were seen."""
        for event, _ in self._buffers:
            fcntl.ioctl(event, _DISABLE, 0)
        return [counter for _, buffer in self._buffers for counter in _counters(buffer)]

    def close(self) -> None:
        """Give the buffers back."""
        for event, buffer in self._buffers:
            buffer.close()
            os.close(event)
        self._buffers.clear()


def _counters(buffer: mmap.mmap) -> list[int]:
    head, tail = struct.unpack_from("<QQ", buffer, _HEAD)
    size = _PAGES * mmap.PAGESIZE
    ring = buffer[mmap.PAGESIZE : mmap.PAGESIZE + size]
    ring += ring[:64]  # records wrap around
    found = []
    while tail < head:
        kind, _, length, counter = struct.unpack_from("<IHHQ", ring, tail % size)
        if kind == _RECORD_SAMPLE:
            found.append(counter)
        tail += length
    return found
