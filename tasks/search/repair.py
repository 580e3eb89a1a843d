"""Repair a trial that violates the quality bound: find the smallest number of layers that must stay in float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tasks.search.trial import RankedLayer

# Largest share of the float model's time that layers in float may take. If float layers take a larger share of the
# time, int8 saves little.
MOST_FLOAT = 0.6


@dataclass
class Repair:
    """The state of a repair, which doubles the number of layers in float until a trial passes, and then bisects.

    ``members`` are the failed trial (``root``) and its variants. ``fails`` layers in float are too few, ``passes``
    enough.
    """

    root: int
    members: list[int] = field(default_factory=list)
    tried: int = 0  # number of the last trial with layers in float
    count: int = 0  # number of layers in float in the last trial
    fails: int = 0
    passes: int | None = None
    is_done: bool = False

    def learn(self, *, failed: bool, passed: bool, can_win: bool) -> None:
        """Record the last trial's outcome; end the repair if the trial cannot win even with fewer layers in int8."""
        if passed or (self.passes is not None and not failed):
            self.passes = self.count
        else:
            self.fails = self.count
            self.is_done |= self.passes is None and not can_win

    def next_count(self, layers: Sequence[RankedLayer]) -> int:
        """Return the number of layers to keep in float next, or 0 at the end of the repair."""
        shares = accumulate(layer.time_share for layer in layers)
        most = min(sum(share <= MOST_FLOAT for share in shares), len(layers) - 1)
        if self.passes is not None:
            self.count = (self.fails + self.passes) // 2
            self.is_done |= self.passes - self.fails <= 1
        else:
            self.count = min(max(1, 2 * self.fails), most)
            self.is_done |= self.fails >= most
        return 0 if self.is_done else self.count
