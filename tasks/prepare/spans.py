r"""Blocks of text as spans: a word with the white space behind it, or a ``\n`` with the other white space behind it.

Spans partition a block (but for white space at its very beginning), so their offsets describe them and no byte is
copied. Hashing is what tokenization costs, and Arrow hashes 64-bit integers several times faster than strings: spans
of up to eight bytes, nine of ten in English, are read as one integer each, padded with zeros. The rare span that ends
in a zero byte itself counts as long, so that different spans have different integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.errors import InputError

LONG = 0
"""The integer that stands for every long span."""

_SHORT_BYTES = 8
_NEW_LINE = ord("\n")
_LONGEST_BLOCK = 2**31 - 1
_MASKS = np.array([(1 << 8 * length) - 1 for length in range(_SHORT_BYTES + 1)], dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Spans:
    """A block's spans, the distinct ones numbered in order of first appearance, short and long ones apart.

    Attributes
    ----------
    codes
        int32 [spans]: index into `keys`.
    keys
        uint64 [distinct]: a short span's bytes, little-endian and padded with zeros, or `LONG`.
    long_at
        int64 [long spans]: which spans are long.
    long_codes
        int32 [long spans]: index into `long_spans`.
    long_spans
        The distinct long spans.
    size
        Bytes of the block.
    """

    codes: npt.NDArray[np.int32]
    keys: npt.NDArray[np.uint64]
    long_at: npt.NDArray[np.int64]
    long_codes: npt.NDArray[np.int32]
    long_spans: list[bytes]
    size: int


def find_spans(block: bytes) -> Spans:
    """Find and number the spans of a block as :func:`tasks.prepare.blocks.read_blocks` yields it.

    Raises
    ------
    InputError
        The block is 2 GiB or longer, which only a single word can make it.
    """
    if len(block) > _LONGEST_BLOCK:
        raise InputError(f"A word of the text is longer than {_LONGEST_BLOCK} bytes.", hint="Is this a text file?")
    data = np.frombuffer(block, dtype=np.uint8)
    begins = np.flatnonzero(_begin(data))
    lengths = np.diff(begins, append=len(data))
    long = lengths > _SHORT_BYTES
    if b"\0" in block:
        long |= data[begins + lengths - 1] == 0
    long_at = np.flatnonzero(long)
    keys = _first_eight(block, begins)
    keys &= _MASKS[np.minimum(lengths, _SHORT_BYTES)]
    keys[long_at] = LONG
    short = pa.array(keys).dictionary_encode()
    others = _byte_spans(block, np.append(begins, len(data))).take(long_at).dictionary_encode()
    return Spans(
        codes=short.indices.to_numpy(),
        keys=short.dictionary.to_numpy(),
        long_at=long_at,
        long_codes=others.indices.to_numpy(),
        long_spans=cast(list[bytes], others.dictionary.to_pylist()),
        size=len(block),
    )


def bytes_of(key: int) -> bytes:
    """The short span that a key stands for."""
    return key.to_bytes(_SHORT_BYTES, "little").rstrip(b"\0")


def first_positions(codes: npt.NDArray[np.int32], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each `wanted` code occurs first in `codes`, which are numbered in order of first appearance."""
    # Every first appearance is a new maximum, so the running maximum is sorted and reaches each code where it begins.
    return np.searchsorted(np.maximum.accumulate(codes), wanted)


def _begin(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Whether a span begins at each byte."""
    # ASCII white space is 9 to 13 and 28 to 32; what is below wraps around to large numbers.
    space = (data - np.uint8(9) < 5) | (data - np.uint8(28) < 5)
    begins: npt.NDArray[np.bool_] = data == _NEW_LINE
    begins[0] |= not space[0]
    begins[1:] |= space[:-1] > space[1:]
    return begins


def _first_eight(block: bytes, begins: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """The eight bytes from each position on as one integer; zeros stand behind the block's end."""
    padded = np.frombuffer(block + bytes(_SHORT_BYTES), dtype=np.uint8)
    overlapping: npt.NDArray[np.uint64] = np.ndarray((len(block),), "<u8", padded, 0, (1,))
    return overlapping[begins]


def _byte_spans(block: bytes, offsets: npt.NDArray[np.int64]) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32).data), pa.py_buffer(block)]
    return cast(pa.BinaryArray, pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers))
