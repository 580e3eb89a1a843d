"""Speeds, ages and outcomes in words, as every screen of the command line shows them."""

from __future__ import annotations

import datetime as dt

from storage.humanize import MISSING, plural, ratio
from storage.results import Row, number

_OUTCOMES = {"promote": "promoted", "pass": "passes", "hold": "held", "reject": "rejected"}


def ratio_within(value: float | None, low: float | None, high: float | None) -> str:
    """A ratio with half its interval's width, on the logarithm, where the interval lies around it: ``5.43× ±3%``."""
    if value is None or not low or not high:
        return ratio(value)
    return f"{ratio(value)} ±{100 * ((high / low) ** 0.5 - 1):.0f}%"


def faster(row: Row, prefix: str = "deciding_") -> str:
    """Write a speed-up with half its interval's width: by default by the caches that the gate decides by."""
    return ratio_within(*(number(row, f"{prefix}speedup{end}") for end in ("", "_low", "_high")))


def signed(value: float | None) -> str:
    """A difference with its sign: ``+0.012``."""
    return MISSING if value is None else f"{value:+.2g}"


def age(span: dt.timedelta) -> str:
    """How long ago something was, in its largest whole unit: ``2 days ago``."""
    seconds = span.total_seconds()
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return f"{plural(int(seconds // length), unit)} ago"
    return "just now"


def became(row: Row) -> str:
    """Write in one word what became of a candidate: its row of ``outcomes`` says it."""
    return _OUTCOMES.get(str(row["became"]), str(row["became"] or MISSING))
