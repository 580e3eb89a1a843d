"""The report's plots as inline SVG, drawn by matplotlib without a display."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from storage.report.facts import Row, candidate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind eyes, without the yellow that is too pale on white; with a marker
# each, so that colour is never the only sign.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
Signs = dict[str, tuple[str, str]]
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "text.color": "#1a1a1a",
    "axes.labelcolor": "#1a1a1a",
    "axes.edgecolor": "#767676",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "xtick.color": "#1a1a1a",
    "ytick.color": "#1a1a1a",
    "svg.fonttype": "none",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "legend.frameon": False,
}


def pareto_plot(rows: Sequence[Row], optimal: frozenset[str], signs: Signs, title: str) -> str:
    """Size against speed-up per candidate, as SVG; "" where none has both.

    Pareto-optimal candidates are filled; quality stands in the legend.
    """
    drawn = [row for row in rows if row["size_bytes"] and row["speedup"]]
    if not drawn:
        return ""
    with _figure(title) as (figure, axes):
        for row in drawn:
            colour, marker = signs[candidate(row)]
            size, speedup = row["size_bytes"] / 1e6, row["speedup"]
            low, high = row["speedup_low"] or speedup, row["speedup_high"] or speedup
            face = colour if candidate(row) in optimal else "white"
            axes.errorbar(
                [size],
                [speedup],
                yerr=[[max(speedup - low, 0)], [max(high - speedup, 0)]],
                fmt=marker,
                color=colour,
                markerfacecolor=face,
                markersize=8,
                capsize=3,
                label=_legend(row),
            )
        axes.axhline(1, color="#767676", linewidth=1, linestyle=":")
        axes.set_xlabel("serialized size in MB (smaller is better)")
        axes.set_ylabel("speed-up over the baseline\n(higher is better)")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        _place_legend(figure, axes)
        return _svg(figure, title)


def trend_plot(rows: Sequence[Row], signs: Signs, title: str) -> str:
    """Speed-up over the nights per candidate with its 95% interval, as SVG; "" where there is but one night."""
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(candidate(row), []).append(row)
    if len({row["night"] for row in rows}) < 2:
        return ""
    with _figure(title) as (figure, axes):
        for name, points in series.items():
            colour, marker = signs[name]
            nights = [row["night"] for row in points]
            axes.plot(nights, [row["speedup"] for row in points], color=colour, marker=marker, markersize=4, label=name)
            lows = [row["speedup_low"] or row["speedup"] for row in points]
            highs = [row["speedup_high"] or row["speedup"] for row in points]
            axes.fill_between(nights, lows, highs, color=colour, alpha=0.18, linewidth=0)
        axes.axhline(1, color="#767676", linewidth=1, linestyle=":")
        axes.set_ylabel("speed-up over the baseline\n(higher is better)")
        axes.set_xlabel("night")
        _dates(axes)
        _place_legend(figure, axes)
        return _svg(figure, title)


def _legend(row: Row) -> str:
    quality = "" if row["quality"] is None else f", {row['quality_metric']} {row['quality']:.4g}"
    return f"{candidate(row)}{quality}"


def signs_of(rows: Sequence[Row]) -> Signs:
    """A colour and a marker per candidate, so that it looks the same in each plot; 49 differing pairs."""
    names = sorted({candidate(row) for row in rows})
    count = len(_COLOURS)
    return {
        name: (_COLOURS[index % count], _MARKERS[(index + index // count) % count]) for index, name in enumerate(names)
    }


@contextmanager
def _figure(title: str) -> Iterator[tuple[Figure, Axes]]:
    import matplotlib
    from matplotlib.figure import Figure

    # SVG ids are random by default; a hash salt per title makes the same night give the same file.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=(8.4, 3.8), layout="constrained")
        yield figure, figure.subplots()


def _place_legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=10)


def _dates(axes: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=2, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _svg(figure: Figure, title: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Screen readers say the label; a width in points would not shrink on a phone.
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return re.sub(
        r'<svg (?:width|height)="[^"]*" (?:width|height)="[^"]*"|<svg ',
        f'<svg role="img" aria-label="{label}" ',
        text,
        count=1,
    )
