"""Which arithmetic a program counter belongs to: the instructions of the innermost loop around it, disassembled.

Names of kernels say what was meant; instructions say what ran, whoever compiled or generated them.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

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
_MNEMONICS: tuple[tuple[str, Family], ...] = (
    ("tdpbf16", "amx-bfloat16"),
    ("tdpbusd", "amx-int8"),
    ("vdpbf16", "avx512-bfloat16"),
    ("vpdpb", "vnni"),
    ("vpdpw", "vnni"),
    ("vpmaddubsw", "avx2-int8"),
    ("pmaddubsw", "avx2-int8"),
    ("vpmaddwd", "avx2-int16"),
    ("pmaddwd", "avx2-int16"),
    ("vfmadd", "float"),
    ("vfnmadd", "float"),
    ("vfmsub", "float"),
    ("vmulp", "float"),
    ("mulp", "float"),
)
# A loop that rounds floats to integers and packs these into bytes quantizes, whatever it scales and adds on the way;
# one that rounds alone may be an exponential.
_ROUNDS = "vcvtps2dq"
_PACKS = ("vpackuswb", "vpacksswb", "vpackssdw", "vpmovusdb", "vpmovsdb", "vpmovdb", "vpshufb")
# What the disassembler does not know, by encoding: AMX is VEX.128.0F38.W0, AVX-VNNI is VEX.0F38.W0, VDPBF16PS is
# EVEX.F3.0F38.W0.
_AMX = {0x49: "tile", 0x4B: "tile", 0x5C: "tdpbf16", 0x5E: "tdpbusd"}
_AVX_VNNI = range(0x50, 0x54)
_LONGEST_INSTRUCTION = 15


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
        present = {family for name in names for prefix, family in _MNEMONICS if name.startswith(prefix)}
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
