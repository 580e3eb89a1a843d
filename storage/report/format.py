"""Numbers as people read them; each filter gives an en dash for what is not there."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

MISSING = "–"


def size(value: float | None) -> str:
    """Bytes in a decimal unit."""
    if value is None:
        return MISSING
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def seconds(value: float | None) -> str:
    """Seconds in a fitting unit."""
    if value is None:
        return MISSING
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def ratio(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A ratio with a times sign, and its interval where there is one."""
    if value is None:
        return MISSING
    interval = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return f"{value:.2f}×{interval}"


def number(value: float | None) -> str:
    """Four significant digits."""
    return MISSING if value is None else f"{value:.4g}"


def signed(value: float | None) -> str:
    """Three significant digits with a sign."""
    return MISSING if value is None else f"{value:+.3g}"


def percent(value: float | None) -> str:
    """A share in percent with a sign."""
    return MISSING if value is None else f"{value:+.1%}"


def time(value: dt.datetime | None) -> str:
    """A time of day in UTC, to the minute."""
    return MISSING if value is None else f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"


def metric(value: float | None, name: str) -> str:
    """A number in the unit of the metric that it is of."""
    return {"size_bytes": size, "speedup": ratio}.get(name, number)(value)


FILTERS: dict[str, Callable[..., Any]] = {
    "size": size,
    "seconds": seconds,
    "ratio": ratio,
    "number": number,
    "signed": signed,
    "percent": percent,
    "time": time,
    "metric": metric,
}
