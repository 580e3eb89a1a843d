"""Numbers as people read them; each function shows an en dash for a missing one."""

from __future__ import annotations

import datetime as dt

MISSING = "–"


def size(value: float | None) -> str:
    """Bytes in a decimal unit, to three digits."""
    return _scaled(value, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)), "B")


def duration(value: float | None) -> str:
    """Seconds in a fitting unit, to three digits."""
    nanoseconds = None if value is None else value * 1e9
    return _scaled(nanoseconds, (("s", 1e9), ("ms", 1e6), ("µs", 1e3)), "ns")


def ratio(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A ratio with a times sign, and its interval if there is one."""
    if value is None:
        return MISSING
    interval = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return f"{value:.2f}×{interval}"


def number(value: float | None, spec: str = ".4g") -> str:
    """A number in a format of Python's; four significant digits by default."""
    return MISSING if value is None else format(value, spec)


def time(value: dt.datetime | None) -> str:
    """A time in UTC, to the minute."""
    return MISSING if value is None else f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"


def metric(value: float | None, name: str) -> str:
    """A number in the unit of the metric `name`."""
    return {"size_bytes": size, "speedup": ratio}.get(name, number)(value)


def _scaled(value: float | None, units: tuple[tuple[str, float], ...], smallest: str) -> str:
    if value is None:
        return MISSING
    for unit, scale in units:
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} {smallest}"
