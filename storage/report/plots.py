"""A workload's plots: speed against quality, latency against size, and speed over the nights."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from storage.humanize import duration, duration_unit, plural, quality_unit, ratio, size, size_unit
from storage.report.figure import drawing
from storage.report.history import History
from storage.report.marks import Mark
from storage.results import Row, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GREY, _GATE, _CHANGE = "#767676", "#a31515", "#5b3a8c"
_TICKS = 3.5


def quality_plot(
    title: str, rows: Sequence[Row], marks: Mapping[str, Mark], bounds: Mapping[str, float], current: str
) -> str:
    """Speed-up against the difference in quality, both with 95% intervals, as SVG; "" if no candidate has both.

    Better is up and to the right whatever the metric. `bounds` are the gate's, by the rule's name, drawn where they are
    near; `current` names the candidate whose bundle is current, which is ringed.
    """
    drawn = [row for row in rows if None not in (row["deciding_speedup"], row["quality_difference"])]
    if not drawn:
        return ""
    metric, is_up = str(drawn[0]["quality_metric"]), bool(drawn[0]["higher_is_better"])
    fastest = max(drawn, key=lambda row: number(row, "deciding_speedup") or 0)
    description = (
        f"{plural(len(drawn), 'candidate')}; the fastest is {fastest['name']} with "
        f"{ratio(number(fastest, 'deciding_speedup'))} the baseline's speed. The table above has every number."
    )
    with drawing(title, description) as picture:
        axes = picture.axes
        for row in drawn:
            _point(
                axes,
                (number(row, "quality_difference") or 0, *_ends(row, "quality_difference", "quality_difference")),
                (number(row, "deciding_speedup") or 0, *_ends(row, "deciding_speedup", "deciding_speedup")),
                marks[str(row["name"])],
                row["name"] == current,
            )
        axes.set_ylim(0, axes.get_ylim()[1] * 1.03)
        axes.axhline(1, color=_GREY, linewidth=1, linestyle=":")
        axes.axvline(0, color=_GREY, linewidth=1, linestyle=":")
        _bound(axes, "y", bounds.get("min_speedup"))
        drop = bounds.get("max_quality_drop")
        _bound(axes, "x", None if drop is None else -drop if is_up else drop)
        if not is_up:
            axes.invert_xaxis()
        axes.locator_params(axis="x", nbins=5)
        unit = f" in {unit}" if (unit := quality_unit(metric).strip()) else ""
        axes.set_xlabel(f"{metric} − the baseline's{unit} (better →)")
        axes.set_ylabel("speed-up (better ↑)")
    return picture.svg


def size_plot(title: str, rows: Sequence[Row], marks: Mapping[str, Mark], current: str) -> str:
    """Latency with its quartiles against size, as SVG; "" if no candidate has both."""
    drawn = [row for row in rows if row["size_bytes"] and row["latency_s"]]
    if not drawn:
        return ""
    sizes, latencies = ([number(row, name) or 0 for row in drawn] for name in ("size_bytes", "latency_s"))
    (size_name, size_scale), (time_name, time_scale) = size_unit(max(sizes)), duration_unit(max(latencies))
    description = (
        f"{plural(len(drawn), 'candidate')}; sizes from {size(min(sizes))} to {size(max(sizes))}, latencies from "
        f"{duration(min(latencies))} to {duration(max(latencies))}. The table above has every number."
    )
    with drawing(title, description) as picture:
        for row, bytes_, latency in zip(drawn, sizes, latencies, strict=True):
            low, high = (number(row, f"latency_{end}_s") for end in ("q25", "q75"))
            at = bytes_ / size_scale
            _point(
                picture.axes,
                (at, at, at),
                (latency / time_scale, (low or latency) / time_scale, (high or latency) / time_scale),
                marks[str(row["name"])],
                row["name"] == current,
            )
        picture.axes.set_xlim(0, picture.axes.get_xlim()[1] * 1.03)
        picture.axes.set_ylim(0, picture.axes.get_ylim()[1] * 1.03)
        picture.axes.locator_params(axis="x", nbins=5)
        picture.axes.set_xlabel(f"size in {size_name} (← better)")
        picture.axes.set_ylabel(f"latency of a call in {time_name} (↓ better)")
    return picture.svg


def history_plot(title: str, history: History, names: Sequence[str], marks: Mapping[str, Mark]) -> str:
    """Speed-up over the nights with its 95% interval, and the history's numbered events, as SVG; "" for one night."""
    from matplotlib.dates import date2num

    nights = history.nights
    if len(nights) < 2 or not names:
        return ""
    description = (
        f"{plural(len(nights), 'night')} from {nights[0]} to {nights[-1]}, {plural(len(names), 'candidate')}; "
    )
    description += f"{plural(len(history.events), 'event')}, listed beside the picture."
    with drawing(title, description) as picture:
        axes = picture.axes
        for name in names:
            rows, mark = history.rows[name], marks[name]
            values = [number(row, "deciding_speedup") or 0 for row in rows]
            lows, highs = zip(*(_ends(row, "deciding_speedup", "deciding_speedup") for row in rows), strict=True)
            at = date2num([row["night"] for row in rows])  # type: ignore[no-untyped-call]
            size_ = 4.5 if len(nights) <= 15 else 3.2
            axes.fill_between(at, lows, highs, color=mark.colour, alpha=0.15, linewidth=0)
            axes.plot(at, values, color=mark.colour, marker=mark.marker, markersize=size_, linewidth=1.2)
            promoted = {event.night for event in history.events if name in event.promoted}
            points = [(x, y) for x, y, row in zip(at, values, rows, strict=True) if row["night"] in promoted]
            if points:
                axes.plot(*zip(*points, strict=True), "o", color="black", markersize=11, markerfacecolor="none")
        axes.axhline(1, color=_GREY, linewidth=1, linestyle=":")
        _events(axes, history)
        ticks = _apart(nights)
        axes.set_xticks(date2num(ticks), [f"{night}" for night in ticks])  # type: ignore[no-untyped-call]
        axes.set_ylabel("speed-up (better ↑)")
    return picture.svg


def _apart(nights: Sequence[dt.date]) -> list[dt.date]:
    """Some of the nights, the last one first, so far from each other that their dates do not touch."""
    least, chosen = (nights[-1] - nights[0]) / _TICKS, [nights[-1]]
    for night in reversed(nights):
        if chosen[-1] - night >= least:
            chosen.append(night)
    return chosen


def _ends(row: Row, interval: str, value: str) -> tuple[float, float]:
    """The ends of an interval; the value itself where it has none."""
    alone = number(row, value) or 0.0
    low, high = number(row, f"{interval}_low"), number(row, f"{interval}_high")
    return alone if low is None else low, alone if high is None else high


def _point(
    axes: Axes, x: tuple[float, float, float], y: tuple[float, float, float], mark: Mark, is_current: bool
) -> None:
    """A mark at the values with bars between the ends, of which one without a width is left out."""
    bars = [[[max(v - low, 0)], [max(high - v, 0)]] if low < high else None for v, low, high in (x, y)]
    axes.errorbar(
        [x[0]], [y[0]], xerr=bars[0], yerr=bars[1], fmt=mark.marker, color=mark.colour, elinewidth=1.2, clip_on=False
    )  # fmt: skip
    if is_current:
        axes.plot([x[0]], [y[0]], "o", color="black", markersize=14, markerfacecolor="none", clip_on=False)


def _bound(axes: Axes, axis: str, value: float | None) -> None:
    """The gate's bound as a line, where what was measured is not squeezed by showing it."""
    if value is None:
        return
    low, high = axes.get_xlim() if axis == "x" else axes.get_ylim()
    room = (high - low) / 2
    if not low - room <= value <= high + room:
        return
    line, limit = (axes.axvline, axes.set_xlim) if axis == "x" else (axes.axhline, axes.set_ylim)
    line(value, color=_GATE, linewidth=1.2, linestyle="--")
    margin = (high - low) / 20
    limit(min(low, value - margin), max(high, value + margin))


def _events(axes: Axes, history: History) -> None:
    """A line for each event, with its number above; numbers that would touch stand on two levels."""
    from matplotlib.dates import date2num

    nights = history.nights
    span, last, level = (nights[-1] - nights[0]).days, None, 0
    for index, event in enumerate(history.events, 1):
        at = date2num(event.night)  # type: ignore[no-untyped-call]
        if event.changes or event.alarms:
            axes.axvline(at, color=_GATE if event.alarms else _CHANGE, linewidth=1.2, linestyle="--")
        level = 1 - level if last is not None and (event.night - last).days < span / 16 else 0
        axes.text(
            at, 1.01 + 0.07 * level, str(index), ha="center", fontsize=9, transform=axes.get_xaxis_transform()
        )  # fmt: skip
        last = event.night
