"""Sample executed instructions by reading the threads' program counters several thousand times per second.

The Linux kernel's ``cpu-clock`` event (``perf_event_open(2)``) provides the program counters, also in virtual machines.
A sample's family is determined by the instructions of the innermost loop around the program counter.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from storage.errors import UnavailableError
from tasks.environment.machine import affinity

if TYPE_CHECKING:
    from capstone import Cs

# Families in order of precedence: a loop with instructions of several families belongs to the first of these families.
Family = Literal[
    "amx-int8", "vnni", "avx2-int8", "avx2-int16", "amx-bfloat16", "avx512-bfloat16", "quantize", "float", "other"
]  # fmt: skip
FAMILIES: tuple[Family, ...] = get_args(Family)
INT8: frozenset[Family] = frozenset({"amx-int8", "vnni", "avx2-int8", "avx2-int16"})
# Families whose sums of two 8-bit products saturate at 16 bits (``VPMADDUBSW``).
SATURATING: frozenset[Family] = frozenset({"avx2-int8"})

_LONGEST = 6000  # maximum size of a loop in bytes; generated kernels unroll loops heavily
_MNEMONICS: dict[Family, tuple[str, ...]] = {
    "amx-bfloat16": ("tdpbf16",),
    "amx-int8": ("tdpbusd",),
    "avx512-bfloat16": ("vdpbf16",),
    "vnni": ("vpdpb", "vpdpw"),
    "avx2-int8": ("vpmaddubsw", "pmaddubsw"),
    "avx2-int16": ("vpmaddwd", "pmaddwd"),
    "float": ("vfmadd", "vfnmadd", "vfmsub", "vmulp", "mulp"),
}
# A loop that rounds floats and packs them into bytes quantizes; without packing, it may compute an exponential.
_ROUNDS = "vcvtps2dq"
_PACKS = ("vpackuswb", "vpacksswb", "vpackssdw", "vpmovusdb", "vpmovsdb", "vpmovdb", "vpshufb")
# Not supported by the disassembler: AMX (VEX.128.0F38.W0), AVX-VNNI (VEX.0F38.W0), and VDPBF16PS (EVEX.F3.0F38.W0).
_AMX = {0x49: "tile", 0x4B: "tile", 0x5C: "tdpbf16", 0x5E: "tdpbusd"}
_AVX_VNNI = range(0x50, 0x54)
_LONGEST_INSTRUCTION, _DECODED_AT_ONCE = 15, 256
Instruction = tuple[str, int, int | None]  # name, address of the next instruction, and jump target or None

FREQUENCY_HZ = 5000
_PERF_EVENT_OPEN = 298  # system call number on x86-64
# Constants from ``<linux/perf_event.h>``.
_SOFTWARE, _CPU_CLOCK, _SAMPLE_IP, _RECORD_SAMPLE = 1, 0, 1, 9
_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV, _FREQ = (1 << bit for bit in (0, 1, 5, 6, 10))
_ENABLE, _DISABLE = 0x2400, 0x2401
_HEAD, _TAIL = 1024, 1032
_CLOSE_ON_EXEC, _SIZE = 8, 112
_PAGES = 256  # buffer size: a power of two, enough for ten seconds at 16 bytes per sample


class Sampler:
    """Sampler for the thread that creates it, and for all threads that this thread starts later."""

    def __init__(self) -> None:
        self._buffers: list[tuple[int, mmap.mmap]] = []
        if platform.machine() != "x86_64":
            raise UnavailableError(
                f"Instructions can be sampled only on x86-64 processors, but this host runs on {platform.machine()}."
            )
        library = ctypes.CDLL(None, use_errno=True)
        flags = _DISABLED | _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HV | _FREQ
        fields = struct.pack("<IIQQQQQ", _SOFTWARE, _SIZE, _CPU_CLOCK, FREQUENCY_HZ, _SAMPLE_IP, 0, flags)
        # An event that threads inherit can be mapped for only one processor, so each processor has its own event.
        for processor in affinity():
            event = library.syscall(
                _PERF_EVENT_OPEN, ctypes.create_string_buffer(fields, _SIZE), 0, processor, -1, _CLOSE_ON_EXEC
            )
            if event < 0:
                reason = os.strerror(ctypes.get_errno())
                raise UnavailableError(
                    f"The system does not allow a process to sample its own instructions: {reason}.",
                    hint="Set kernel.perf_event_paranoid to 2 or less. In a container, also allow the perf_event_open "
                    "system call.",
                )
            self._buffers.append((event, mmap.mmap(event, (1 + _PAGES) * mmap.PAGESIZE)))

    def start(self) -> None:
        """Start sampling."""
        for event, buffer in self._buffers:
            buffer[_TAIL : _TAIL + 8] = buffer[_HEAD : _HEAD + 8]
            fcntl.ioctl(event, _ENABLE, 0)

    def stop(self) -> list[int]:
        """Stop sampling; return the sampled program counters."""
        for event, _ in self._buffers:
            fcntl.ioctl(event, _DISABLE, 0)
        return [counter for _, buffer in self._buffers for counter in _counters(buffer)]


class Disassembler:
    """Disassembler that reads instructions from this process's memory and assigns them to families."""

    def __init__(self) -> None:
        from capstone import CS_ARCH_X86, CS_MODE_64, Cs

        self._engine: Cs = Cs(CS_ARCH_X86, CS_MODE_64)
        self._decoded: dict[int, Instruction] = {}
        self._executable: list[tuple[int, int]] = []
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            bounds, rights, *_ = line.split()
            if "x" in rights and "r" in rights and not line.endswith("[vsyscall]"):
                start, end = (int(bound, 16) for bound in bounds.split("-"))
                self._executable.append((start, end))

    def families(self, counters: Iterable[int]) -> Counter[Family]:
        """Count the program counters that fall into each instruction family."""
        families: Counter[Family] = Counter()
        for counter, count in Counter(counters).items():
            families[self._family(counter)] += count
        return families

    def _family(self, counter: int) -> Family:
        span = next(((start, end) for start, end in self._executable if start <= counter < end), None)
        if span is None:
            return "other"
        names, start = [], None
        for _, name, target in self._instructions(counter, min(span[1], counter + _LONGEST)):
            names.append(name)
            if target is not None and target <= counter:  # a jump back to the beginning of the loop
                start = target
                break
            if name in ("ret", "jmp"):
                break
        if start is not None and start >= max(span[0], counter - _LONGEST):
            names += [name for _, name, _ in self._instructions(start, counter)]
        present = {family for family, prefix in _MNEMONICS.items() if any(name.startswith(prefix) for name in names)}
        if _ROUNDS in names and any(name.startswith(_PACKS) for name in names):
            present.add("quantize")
        return next((family for family in FAMILIES if family in present), "other")

    def _instructions(self, start: int, end: int) -> Iterator[tuple[int, str, int | None]]:
        """Yield the address, the name and the jump target (or None) of each instruction in a range."""
        while start < end:
            if start not in self._decoded:
                self._decode(start, end)
            if start not in self._decoded:
                return
            name, following, target = self._decoded[start]
            yield start, name, target
            start = following

    def _decode(self, start: int, end: int) -> None:
        """Decode instructions, and keep them, because most samples fall into a few loops."""
        code = ctypes.string_at(start, min(_DECODED_AT_ONCE, end - start))
        for address, size, name, operands in self._engine.disasm_lite(code, start):
            target = int(operands, 16) if name[0] == "j" and operands.startswith("0x") else None
            self._decoded[address] = name, address + size, target
            start = address + size
        unknown = _unknown(ctypes.string_at(start, min(_LONGEST_INSTRUCTION, end - start)))
        if unknown is not None:
            self._decoded[start] = unknown[0], start + unknown[1], None


def _unknown(code: bytes) -> tuple[str, int] | None:
    """Return the name and length of an AMX, AVX-VNNI or bfloat16 instruction; return None for other instructions."""
    code = code.ljust(_LONGEST_INSTRUCTION, b"\0")
    if code[0] == 0xC4 and code[1] & 0x1F == 2 and not code[2] & 0x84 and code[3] in _AMX:
        return _AMX[code[3]], 4 + _operand_bytes(code[4:])
    if code[0] == 0xC4 and code[1] & 0x1F == 2 and not code[2] & 0x80 and code[3] in _AVX_VNNI:
        return "vpdpbusd", 4 + _operand_bytes(code[4:])
    if code[0] == 0x62 and code[1] & 7 == 2 and code[2] & 0x83 == 2 and code[4] == 0x52:
        return "vdpbf16ps", 5 + _operand_bytes(code[5:])
    return None


def _operand_bytes(code: bytes) -> int:
    """Return the total length in bytes of an instruction's ModRM, SIB and displacement."""
    mode, register = code[0] >> 6, code[0] & 7
    if mode == 3:
        return 1
    scaled = register == 4
    without_base = mode == 0 and (register == 5 or (scaled and code[1] & 7 == 5))
    return 1 + scaled + {0: 4 if without_base else 0, 1: 1, 2: 4}[mode]


def _counters(buffer: mmap.mmap) -> list[int]:
    head, tail = struct.unpack_from("<QQ", buffer, _HEAD)
    size = _PAGES * mmap.PAGESIZE
    ring = buffer[mmap.PAGESIZE : mmap.PAGESIZE + size]
    ring += ring[:64]  # records wrap around
    counters = []
    while tail < head:
        kind, _, length, counter = struct.unpack_from("<IHHQ", ring, tail % size)
        if kind == _RECORD_SAMPLE:
            counters.append(counter)
        tail += length
    return counters
