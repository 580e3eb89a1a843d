"""Ids of spans that were seen before, looked up for a whole block at once.

A span of a few bytes is one or more 64-bit integers, so NumPy can hash it, and a table with one slot for each hash says
whether the span is known: a multiplication, a gather and a comparison, a few nanoseconds a span. The table is a
shortcut only. A slot belongs to the span that came first; any other span with its hash is missing from the table, which
costs time and nothing else. Frequent words come early and get their slots, and the table grows with what it holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_FREE = -1
_SLOTS = 1 << 14
_MOST_SLOTS = 1 << 21
_SLOTS_FOR_A_KEY = 8
# Odd numbers with well mixed bits, one for each integer of a key: powers of 2**64 / golden ratio (Knuth's
# multiplicative hashing).
_FACTORS = tuple(np.uint64(pow(0x9E3779B97F4A7C15, power, 1 << 64)) for power in (1, 3, 5, 7))


@dataclass(frozen=True, slots=True)
class Found:
    """What a table knows of some keys.

    Attributes
    ----------
    ids
        int32 [keys]: the id of each key, meaningless for the missing ones.
    missing
        int64 [missing]: which keys the table does not hold.
    slots
        int64 [missing]: the slots of those.
    """

    ids: npt.NDArray[np.int32]
    missing: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]


class KeyTable:
    """Ids by keys of `width` 64-bit integers, 1 to 4.

    Keys of zeros are never held, never missing, and their ids mean nothing.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._make(_SLOTS)

    def _make(self, slots: int) -> None:
        self._added = 0
        self._shift = np.uint64(65 - slots.bit_length())
        self._key = tuple(np.zeros(slots, dtype=np.uint64) for _ in range(self._width))
        self._ids = np.full(slots, _FREE, dtype=np.int32)
        # Zeros hash to the first slot, which is nobody's.
        self._ids[0] = 0

    def find(self, key: tuple[npt.NDArray[np.uint64], ...]) -> Found:
        """Look keys up.

        Parameters
        ----------
        key
            The integers of the keys, one array (uint64 [keys]) for each integer.
        """
        slots = self._slots(key)
        missing = np.flatnonzero(self._differ(key, slots))
        return Found(self._ids.take(slots), missing, slots.take(missing))

    def add(self, key: tuple[npt.NDArray[np.uint64], ...], found: Found, ids: npt.NDArray[np.int32]) -> None:
        """Hold the keys that were missing when `found` was made, with `ids` (int32 [missing]), where slots are free."""
        free = np.flatnonzero(self._ids.take(found.slots) == _FREE)
        slots, keys = found.slots.take(free), found.missing.take(free)
        # The last of several keys for a slot wins in each of these assignments, so that they agree.
        for held, part in zip(self._key, key, strict=True):
            held[slots] = part.take(keys)
        self._ids[slots] = ids.take(free)
        self._added += len(free)
        if self._added * _SLOTS_FOR_A_KEY > len(self._ids) < _MOST_SLOTS:
            self._grow()

    def _grow(self) -> None:
        """Make room, if the slots are as full as the added keys, not all of them different, let one expect."""
        taken = np.flatnonzero(self._ids[1:] != _FREE) + 1
        self._added = len(taken)
        if self._added * _SLOTS_FOR_A_KEY * 2 < len(self._ids):
            return
        key, ids = tuple(held.take(taken) for held in self._key), self._ids.take(taken)
        self._make(4 * len(self._ids))
        self.add(key, self.find(key), ids)

    def _slots(self, key: tuple[npt.NDArray[np.uint64], ...]) -> npt.NDArray[np.int64]:
        mixed = key[0] * _FACTORS[0]
        for part, factor in zip(key[1:], _FACTORS[1:], strict=False):
            mixed += part * factor
        mixed >>= self._shift
        return mixed.view(np.int64)

    def _differ(self, key: tuple[npt.NDArray[np.uint64], ...], slots: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        differ: npt.NDArray[np.bool_] = self._key[0].take(slots) != key[0]
        for held, part in zip(self._key[1:], key[1:], strict=True):
            differ |= held.take(slots) != part
        return differ
