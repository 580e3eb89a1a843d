"""Numbers, moments and decisions in words, as every table of the command line shows them."""

from __future__ import annotations

import datetime as dt

NONE = "–"
_DECISIONS = {"promote": "promoted", "pass": "passes", "hold": "held", "reject": "rejected"}


def ratio(value: float | None) -> str:
    """A ratio, above 1 being better: ``1.41×``."""
    return NONE if value is None else f"{value:.2f}×"


def ratio_within(value: float | None, low: float | None, high: float | None) -> str:
    """A ratio with half its interval's width, on the logarithm, where the interval lies around it: ``5.43× ±3%``."""
    if value is None or not low or not high:
        return ratio(value)
    return f"{ratio(value)} ±{100 * ((high / low) ** 0.5 - 1):.0f}%"


def signed(value: float | None) -> str:
    """A difference with its sign: ``+0.012``."""
    return NONE if value is None else f"{value:+.2g}"


def size(size_bytes: float | None) -> str:
    """Bytes in the unit that reads best: ``7.17 MB``."""
    if size_bytes is None:
        return NONE
    return f"{size_bytes / 1e6:.3g} MB" if size_bytes >= 1e5 else f"{size_bytes / 1e3:.3g} kB"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that reads best: ``2.91 ms``."""
    if seconds is None:
        return NONE
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def moment(at: dt.datetime) -> str:
    """A moment to the minute, in UTC."""
    return f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"


def age(span: dt.timedelta) -> str:
    """How long ago something was, in its largest whole unit: ``2 days ago``."""
    seconds = span.total_seconds()
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return f"{plural(int(seconds // length), unit)} ago"
    return "just now"


def plural(count: int, noun: str) -> str:
    """A count with its noun: ``1 night``, ``2 nights``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def decided(decision: object, incumbent_stays: object, status: object = "ok") -> str:
    """What became of a candidate in one word; one that is promoted where the incumbent stays is the incumbent."""
    if status in ("failed", "skipped"):
        return str(status)
    if decision == "promote" and incumbent_stays:
        return "stays"
    return _DECISIONS.get(str(decision), NONE)
