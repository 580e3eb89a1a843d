"""Draw a workload's speed by night as inline SVG.

`storage.report` imports this module only if the optional package matplotlib is installed.
"""

from __future__ import annotations

import datetime as dt
import html
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.dates import date2num
from matplotlib.figure import Figure

from storage.digest import digest_of
from storage.humanize import plural
from storage.report.night import History, Mark
from storage.results import Row, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = Path(__file__).with_name("plots.mplstyle")
# Figure size in inches, chosen so that text in a plot and text on the page look equally large on a phone.
_SIZE = (4.6, 3.5)
_TAG, _DIGITS = re.compile(r"<[^>]*>"), re.compile(r"(\d\.\d\d)\d+")
_ROOT = re.compile(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>')
# Remove unneeded parts of matplotlib's SVG: comments, metadata, duplicate ids, default styles and newlines.
_IDLE = re.compile(r'<!--.*?-->|<metadata>.*?</metadata>|(?<=<g) id="[^"]*"| ?stroke-linejoin: [a-z]+;?|\n', re.DOTALL)


def _accessible(text: str, title: str, description: str) -> str:
    name = f"plot-{digest_of({'title': title})[:8]}"
    text = _IDLE.sub("", text[text.index("<svg") :]).replace("xlink:href", "href")
    text = _TAG.sub(lambda tag: _DIGITS.sub(r"\1", tag[0]), text)  # round coordinates, but not the numbers on the axes
    # Omit the width in points, because a fixed width would not shrink on a phone.
    root = (
        f'<svg \\1 role="img" aria-labelledby="{name}-title" aria-describedby="{name}-text">'
        f'<title id="{name}-title">{html.escape(title)}</title><desc id="{name}-text">{html.escape(description)}</desc>'
    )
    return _ROOT.sub(root, text, count=1)


_GREY, _GATE, _CHANGE = "#767676", "#a31515", "#5b3a8c"
_TICKS = 3.5
Ends = tuple[float, float, float]  # a value and the ends of its interval


def history_plot(title: str, history: History, names: Sequence[str], marks: Mapping[str, Mark]) -> str:
    """Plot speed-up by night, with 95% intervals and numbered events; return ``""`` for fewer than two nights."""
    nights = history.nights
    if len(nights) < 2 or not names:
        return ""
    description = (
        f"{plural(len(nights), 'night')} from {nights[0]} to {nights[-1]}, {plural(len(names), 'candidate')}; "
        f"{plural(len(history.events), 'event')}, listed next to the plot."
    )
    # SVG ids are random by default; a salt derived from the title makes the file reproducible.
    with matplotlib.rc_context({"svg.hashsalt": title}, fname=_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        for name in names:
            rows, mark = history.rows[name], marks[name]
            values, lows, highs = zip(*(_with_ends(row, "deciding_speedup") for row in rows), strict=True)
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
        ticks = _spaced(nights)
        axes.set_xticks(date2num(ticks), [f"{night}" for night in ticks])  # type: ignore[no-untyped-call]
        axes.set_ylabel("speed-up (better ↑)")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _accessible(buffer.getvalue(), title, description)


def _spaced(nights: Sequence[dt.date]) -> list[dt.date]:
    """Choose the nights to label, starting from the last, so that the date labels do not overlap."""
    least, chosen = (nights[-1] - nights[0]) / _TICKS, [nights[-1]]
    for night in reversed(nights):
        if chosen[-1] - night >= least:
            chosen.append(night)
    return chosen


def _with_ends(row: Row, column: str) -> Ends:
    value = number(row, column) or 0.0
    low, high = number(row, f"{column}_low"), number(row, f"{column}_high")
    return value, value if low is None else low, value if high is None else high


def _events(axes: Axes, history: History) -> None:
    """Number each event, and draw lines at changes and alerts."""
    for index, event in enumerate(history.events, 1):
        at = date2num(event.night)  # type: ignore[no-untyped-call]
        if event.changes or event.alarms:
            axes.axvline(at, color=_GATE if event.alarms else _CHANGE, linewidth=1.2, linestyle="--")
        axes.text(at, 1.01, str(index), ha="center", fontsize=9, transform=axes.get_xaxis_transform())
