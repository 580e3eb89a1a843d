"""Speeds, ages and decisions in words, as every table of the command line shows them."""

from __future__ import annotations

import datetime as dt

from storage.humanize import MISSING, plural, ratio
from storage.results import Caches, Row, number

_DECISIONS = {"promote": "promoted", "pass": "passes", "hold": "held", "reject": "rejected"}


def ratio_within(value: float | None, low: float | None, high: float | None) -> str:
    """A ratio with half its interval's width, on the logarithm, where the interval lies around it: ``5.43× ±3%``."""
    if value is None or not low or not high:
        return ratio(value)
    return f"{ratio(value)} ±{100 * ((high / low) ** 0.5 - 1):.0f}%"


def faster(row: Row, caches: Caches) -> str:
    """The speed-up of a measurement with warm or with cold caches, with half its interval's width."""
    prefix = "cold_" if caches == "cold" else ""
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


def decided(decision: object, incumbent_stays: object, status: object = "ok") -> str:
    """What became of a candidate in one word; one that is promoted where the incumbent stays is the incumbent."""
    if status in ("failed", "skipped"):
        return str(status)
    if decision == "promote" and incumbent_stays:
        return "stays"
    return _DECISIONS.get(str(decision), MISSING)
