"""Which instructions run: where this process's threads are, many thousand times a second, and in which arithmetic.

Names of kernels say what was meant; instructions say what ran, whoever compiled or generated them. Program counters
come from the kernel, without any tool: its event ``cpu-clock`` (perf_event_open(2)) needs no counter of the processor,
so that it works in virtual machines too. Only what runs in user space is sampled. A counter's arithmetic is read from
the instructions of the innermost loop around it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from storage.errors import UnavailableError
from tasks.machine import affinity

if TYPE_CHECKING:
    from capstone import Cs

# In the order in which they decide about a loop that has several: products before what prepares or finishes them.
Family = Literal[
    "amx-int8", "vnni", "avx2-int8", "avx2-int16", "amx-bfloat16", "avx512-bfloat16", "quantize", "float", "other"
]  # fmt: skip
FAMILIES: tuple[Family, ...] = get_args(Family)
INT8: frozenset[Family] = frozenset({"amx-int8", "vnni", "avx2-int8", "avx2-int16"})
# 8-bit products of pairs are added up in 16 bits there, and cut off at the ends of their range (VPMADDUBSW).
SATURATING: frozenset[Family] = frozenset({"avx2-int8"})

_LONGEST = 6000  # bytes of a loop; generated kernels are unrolled far
_MNEMONICS: dict[Family, tuple[str, ...]] = {
    "amx-bfloat16": ("tdpbf16",),
    "amx-int8": ("tdpbusd",),
    "avx512-bfloat16": ("vdpbf16",),
    "vnni": ("vpdpb", "vpdpw"),
    "avx2-int8": ("vpmaddubsw", "pmaddubsw"),
    "avx2-int16": ("vpmaddwd", "pmaddwd"),
    "float": ("vfmadd", "vfnmadd", "vfmsub", "vmulp", "mulp"),
}
# A loop that rounds floats to integers and packs these into bytes quantizes, whatever it scales and adds on the way;
# one that rounds alone may be an exponential.
_ROUNDS = "vcvtps2dq"
_PACKS = ("vpackuswb", "vpacksswb", "vpackssdw", "vpmovusdb", "vpmovsdb", "vpmovdb", "vpshufb")
# What the disassembler does not know, by encoding: AMX is VEX.128.0F38.W0, AVX-VNNI is VEX.0F38.W0, VDPBF16PS is
# EVEX.F3.0F38.W0.
_AMX = {0x49: "tile", 0x4B: "tile", 0x5C: "tdpbf16", 0x5E: "tdpbusd"}
_AVX_VNNI = range(0x50, 0x54)
_LONGEST_INSTRUCTION = 15

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
                raise UnavailableError(
                    f"The system does not let programs be sampled: {why}.",
                    hint="Set kernel.perf_event_paranoid to 2 or less, and allow perf_event_open in containers.",
                )
            self._buffers.append((event, mmap.mmap(event, (1 + _PAGES) * mmap.PAGESIZE)))

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


class Disassembler:
    """Finds the family of program counters of this process on x86-64, while the code that they are in is mapped."""

    def __init__(self) -> None:
        from capstone import CS_ARCH_X86, CS_MODE_64, Cs

        self._engine: Cs = Cs(CS_ARCH_X86, CS_MODE_64)
        self._executable = list(_executable_ranges())

    def families(self, counters: Iterable[int]) -> Counter[Family]:
        """How many of the counters belong to each family."""
        found: Counter[Family] = Counter()
        for counter, times in Counter(counters).items():
            found[self._family(counter)] += times
        return found

    def _family(self, counter: int) -> Family:
        span = next((each for each in self._executable if each[0] <= counter < each[1]), None)
        if span is None:
            return "other"
        names, start = [], None
        for _, name, target in self._instructions(counter, min(span[1], counter + _LONGEST)):
            names.append(name)
            if target is not None and target <= counter:  # back to where the loop begins
                start = target
                break
            if name in ("ret", "jmp"):
                break
        if start is not None and start >= max(span[0], counter - _LONGEST):
            names += [name for _, name, _ in self._instructions(start, counter)]
        present = {family for family, begins in _MNEMONICS.items() if any(name.startswith(begins) for name in names)}
        if _ROUNDS in names and any(name.startswith(_PACKS) for name in names):
            present.add("quantize")
        return next((family for family in FAMILIES if family in present), "other")

    def _instructions(self, start: int, end: int) -> Iterator[tuple[int, str, int | None]]:
        """Address, name and, of a jump, target of each instruction in a range."""
        while start < end:
            code = ctypes.string_at(start, end - start)
            for address, size, name, operands in self._engine.disasm_lite(code, start):
                start = address + size
                yield address, name, int(operands, 16) if name[0] == "j" and operands.startswith("0x") else None
            unknown = _unknown(ctypes.string_at(start, min(_LONGEST_INSTRUCTION, max(0, end - start))))
            if unknown is None:
                return
            yield start, unknown[0], None
            start += unknown[1]


def _unknown(code: bytes) -> tuple[str, int] | None:
    """Name and length of an instruction that the disassembler does not know; None where it is another one."""
    code = code.ljust(_LONGEST_INSTRUCTION, b"\0")
    if code[0] == 0xC4 and code[1] & 0x1F == 2 and not code[2] & 0x84 and code[3] in _AMX:
        return _AMX[code[3]], 4 + _operand_bytes(code[4:])
    if code[0] == 0xC4 and code[1] & 0x1F == 2 and not code[2] & 0x80 and code[3] in _AVX_VNNI:
        return "vpdpbusd", 4 + _operand_bytes(code[4:])
    if code[0] == 0x62 and code[1] & 7 == 2 and code[2] & 0x83 == 2 and code[4] == 0x52:
        return "vdpbf16ps", 5 + _operand_bytes(code[5:])
    return None


def _operand_bytes(code: bytes) -> int:
    """Length of ModRM, SIB and displacement, which is of one byte or of four."""
    mode, register = code[0] >> 6, code[0] & 7
    if mode == 3:
        return 1
    scaled = register == 4
    without_base = mode == 0 and (register == 5 or (scaled and code[1] & 7 == 5))
    return 1 + scaled + {0: 4 if without_base else 0, 1: 1, 2: 4}[mode]


def _executable_ranges() -> Iterator[tuple[int, int]]:
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        bounds, rights, *_ = line.split()
        if "x" in rights and "r" in rights and not line.endswith("[vsyscall]"):
            start, end = (int(bound, 16) for bound in bounds.split("-"))
            yield start, end


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
