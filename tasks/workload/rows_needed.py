"""The number of rows that would decide a rule on quality, from the disagreement that was seen."""

from __future__ import annotations

import math

_MOST = 10_000_000  # more rows than anyone evaluates: the difference is as large as the bound


def rows_to_decide(drop: float, low: float, high: float, bound: float, rows: int) -> int | None:
    """Return about how many rows would move an undecided interval to one side of a bound; round up to two digits.

    An interval of a paired difference shrinks with the square root of the number of rows. See Connor, "Sample size for
    testing differences in proportions for the paired-sample design", Biometrics 43(1), 1987. The result is None if the
    `drop` is so close to the bound that no realistic number of rows would decide.
    """
    margin, half = abs(bound - drop), high - drop if drop <= bound else drop - low
    if margin * math.sqrt(_MOST / rows) <= half:
        return None
    needed = rows * (half / margin) ** 2
    step: int = 10 ** max(0, math.floor(math.log10(max(needed, 1))) - 1)
    return math.ceil(needed / step) * step
