"""Format numbers for display, in suitable units; a missing value becomes a dash."""

from __future__ import annotations

import datetime as dt

from markupsafe import Markup, escape

MISSING = "–"
_SIZES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_DURATIONS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def size(value: float | None) -> str:
    """Format a number of bytes in a decimal unit, with three significant digits."""
    return MISSING if value is None else _scaled(value, _SIZES)


def duration(value: float | None) -> str:
    """Format a duration in a suitable unit, with three significant digits."""
    return MISSING if value is None else _scaled(value, _DURATIONS)


def quality_unit(metric: str) -> str:
    """Return the unit for a difference in a quality metric, or ``""`` if the difference has no unit."""
    if metric in ("top1", "top5"):
        return " points"
    return "%" if metric.endswith("_percent") else ""


def ratio(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Format a ratio with a times sign, and with its interval if both ends of the interval are known."""
    if value is None:
        return MISSING
    interval = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return f"{value:.2f}×{interval}"


def difference(value: float | None, unit: str = "") -> str:
    """Format a difference with its sign and unit, with three significant digits."""
    if value is None:
        return MISSING
    return "0" if value == 0 else f"{value:+.3g}{unit}".replace("-", "−")


def number(value: float | None, spec: str = ".4g") -> str:
    """Format a number with a Python format specification; the default is four significant digits."""
    return MISSING if value is None else format(value, spec)


def percent(value: float | None) -> str:
    """Format a fraction as a percentage, with one decimal place below 10%."""
    return MISSING if value is None else f"{100 * value:.{0 if abs(value) >= 0.095 else 1}f}%"


def moment(value: dt.datetime | None) -> str:
    """Format a time in UTC, to the minute."""
    return MISSING if value is None else f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"


def metric(value: float | None, name: str) -> str:
    """Format a number in the unit of the `name` metric."""
    return {"size_bytes": size, "speedup": ratio}.get(name, number)(value)


def change(value: float | None) -> str:
    """Format a relative change as a percentage with its sign."""
    return MISSING if value is None else f"{value:+.1%}".replace("-", "−")


def name(candidate: str) -> Markup:
    """Return a candidate's name as HTML that allows a line break after the slash."""
    return escape(candidate).replace("/", Markup("/<wbr>"))


def plural(count: int, noun: str) -> str:
    """Format a count and its noun, for example ``1 alert`` or ``2 alerts``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    unit, scale = next((unit for unit in units if value >= unit[1]), units[-1])
    return f"{value / scale:.3g} {unit}"
