r"""Blocks of text as spans: a word with the white space behind it, or a ``\n`` with the other white space behind it.

Spans partition a block (but for white space at its very beginning), so the places where they begin describe them and
no byte is copied. Spans of up to 8, 16 and 32 bytes are read as one, two and four integers, padded with zeros, so that
:mod:`tasks.domains.language_model.key_table` can look them up. Longer ones have no such key, nor has the rare span that ends in a zero
byte itself: different spans have different keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.errors import InputError

WIDTHS = (1, 2, 4)
"""Integers in the keys of the groups of spans."""

_INTEGER_BYTES = 8
_NEW_LINE = ord("\n")
_LONGEST_BLOCK = 2**31 - 1
_MASKS = np.array([(1 << 8 * length) - 1 for length in range(_INTEGER_BYTES + 1)], dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Group:
    """Spans whose keys have the same number of integers.

    Attributes
    ----------
    at
        int64 [in the group]: which spans of the block these are. The first group has all of them, with zeros for the
        key of those that do not belong to it, since taking them out would cost more than looking them up.
    key
        uint64 [in the group] for each integer of the keys: the bytes of the spans, little-endian.
    """

    at: npt.NDArray[np.int64]
    key: tuple[npt.NDArray[np.uint64], ...]


@dataclass(frozen=True, slots=True)
class Spans:
    """A block's spans.

    Attributes
    ----------
    block
        The text.
    begins
        int64 [spans]: where each span begins; it ends where the next one begins.
    groups
        The spans that have a key, a group for each of `WIDTHS`.
    others
        int64 [others]: which spans have none.
    """

    block: bytes
    begins: npt.NDArray[np.int64]
    groups: tuple[Group, ...]
    others: npt.NDArray[np.int64]

    def text(self, at: npt.NDArray[np.int64]) -> list[bytes]:
        """The spans that `at` (int64 [wanted], rising) names, white space included."""
        block, begins = self.block, self.begins
        ends = begins.take(at + 1, mode="clip")
        if at.size and at[-1] == len(begins) - 1:
            ends[-1] = len(block)
        return [block[begin:end] for begin, end in zip(begins.take(at).tolist(), ends.tolist(), strict=True)]


def find_spans(block: bytes) -> Spans:
    """Find the spans of a block as :func:`tasks.domains.language_model.blocks.read_blocks` yields it.

    Raises
    ------
    InputError
        The block is 2 GiB or longer, which only a single word can make it.
    """
    if len(block) > _LONGEST_BLOCK:
        raise InputError(f"A word of the text is longer than {_LONGEST_BLOCK} bytes.", hint="Is this a text file?")
    data = np.frombuffer(block, dtype=np.uint8)
    begins = np.flatnonzero(_begin(data))
    lengths = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=lengths[:-1])
    lengths[-1:] = len(data) - begins[-1:]
    if b"\0" in block:
        lengths[data[begins + lengths - 1] == 0] = len(data) + _INTEGER_BYTES * WIDTHS[-1]
    integers = _integers(block)
    others = np.flatnonzero(lengths > _INTEGER_BYTES)
    short = _key(integers, begins, lengths, 1)
    short[0][others] = 0
    groups = [Group(np.arange(len(begins)), short)]
    for width in WIDTHS[1:]:
        fits = lengths.take(others) <= _INTEGER_BYTES * width
        at, others = others[fits], others[~fits]
        groups.append(Group(at, _key(integers, begins.take(at), lengths.take(at), width)))
    return Spans(block, begins, tuple(groups), others)


def _begin(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Whether a span begins at each byte."""
    # ASCII white space is 9 to 13 and 28 to 32; what is below wraps around to large numbers.
    space = (data - np.uint8(9) < 5) | (data - np.uint8(28) < 5)
    begins: npt.NDArray[np.bool_] = data == _NEW_LINE
    begins[:1] |= ~space[:1]
    begins[1:] |= space[:-1] > space[1:]
    return begins


def _integers(block: bytes) -> npt.NDArray[np.uint64]:
    """The bytes of a block as aligned integers, with zeros behind them where keys may reach."""
    padding = -len(block) % _INTEGER_BYTES + _INTEGER_BYTES * (WIDTHS[-1] + 1)
    return np.frombuffer(block + bytes(padding), dtype="<u8")


def _key(
    integers: npt.NDArray[np.uint64], begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], width: int
) -> tuple[npt.NDArray[np.uint64], ...]:
    """The bytes from each place on as `width` integers, those behind the span as zeros."""
    # Unaligned gathers are slower than two aligned ones: a part of this integer and the rest from the next.
    place = begins >> 3
    shift = begins.view(np.uint64) & np.uint64(7)
    shift <<= np.uint64(3)
    # In two steps, as a shift by 64 bits is not defined.
    back = shift ^ np.uint64(63)
    key = []
    for number in range(width):
        part = integers.take(place)
        part >>= shift
        place += 1
        rest = integers.take(place)
        rest <<= np.uint64(1)
        rest <<= back
        part |= rest
        part &= _MASKS.take(lengths - _INTEGER_BYTES * number if number else lengths, mode="clip")
        key.append(part)
    return tuple(key)
