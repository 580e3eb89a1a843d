"""The report's plots as inline SVG, drawn by matplotlib without a display."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from storage.results import Row, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind people can tell apart, without the yellow that is too pale on white; with
# a marker each, so that colour is never the only sign.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
Signs = dict[str, tuple[str, str]]
_STYLE = Path(__file__).with_name("plots.mplstyle")
_GREY = "#767676"


def candidate(row: Row) -> str:
    """A row's candidate as ``recipe/runtime``."""
    return f"{row['recipe']}/{row['runtime']}"


def signs_of(rows: Sequence[Row]) -> Signs:
    """A colour and a marker per candidate, so that it looks the same in each plot; 49 different pairs."""
    names = sorted({candidate(row) for row in rows})
    count = len(_COLOURS)
    return {
        name: (_COLOURS[index % count], _MARKERS[(index + index // count) % count]) for index, name in enumerate(names)
    }


def pareto_plot(rows: Sequence[Row], optimal: Collection[str], signs: Signs, title: str) -> str:
    """Size against speed-up per candidate, as SVG; "" if none has both.

    Pareto-optimal candidates are filled; quality is in the legend.
    """
    drawn = [row for row in rows if row["size_bytes"] and row["speedup"]]
    if not drawn:
        return ""
    with _figure(title) as (figure, axes):
        for row in drawn:
            colour, marker = signs[candidate(row)]
            speedup, low, high = _interval(row)
            quality = number(row, "quality")
            axes.errorbar(
                [(number(row, "size_bytes") or 0) / 1e6],
                [speedup],
                yerr=[[max(speedup - low, 0)], [max(high - speedup, 0)]],
                fmt=marker,
                color=colour,
                markerfacecolor=colour if candidate(row) in optimal else "white",
                markersize=8,
                capsize=3,
                label=candidate(row) + ("" if quality is None else f", {row['quality_metric']} {quality:.4g}"),
            )
        axes.set_xlabel("serialized size in MB (smaller is better)")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        return _svg(figure, axes, title)


def trend_plot(rows: Sequence[Row], signs: Signs, title: str) -> str:
    """Speed-up over the nights per candidate with its 95% interval, as SVG; "" if there is only one night."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    if len({row["night"] for row in rows}) < 2:
        return ""
    with _figure(title) as (figure, axes):
        for name in dict.fromkeys(candidate(row) for row in rows):
            colour, marker = signs[name]
            points = [row for row in rows if candidate(row) == name]
            nights = date2num([row["night"] for row in points])  # type: ignore[no-untyped-call]
            speedups, lows, highs = zip(*map(_interval, points), strict=True)
            axes.plot(nights, speedups, color=colour, marker=marker, markersize=4, label=name)
            axes.fill_between(nights, lows, highs, color=colour, alpha=0.18, linewidth=0)
        axes.set_xlabel("night")
        locator = AutoDateLocator(minticks=2, maxticks=8)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        return _svg(figure, axes, title)


def _interval(row: Row) -> tuple[float, float, float]:
    """The speed-up with the ends of its interval, which a baseline does not have."""
    speedup = number(row, "speedup") or 0.0
    return speedup, number(row, "speedup_low") or speedup, number(row, "speedup_high") or speedup


@contextmanager
def _figure(title: str) -> Iterator[tuple[Figure, Axes]]:
    import matplotlib
    from matplotlib.figure import Figure

    # SVG ids are random by default; with a hash salt per title the same night yields the same file.
    with matplotlib.rc_context({"svg.hashsalt": title}, fname=_STYLE):
        figure = Figure(figsize=(8.4, 3.8), layout="constrained")
        yield figure, figure.subplots()


def _svg(figure: Figure, axes: Axes, title: str) -> str:
    axes.axhline(1, color=_GREY, linewidth=1, linestyle=":")
    axes.set_ylabel("speed-up over the baseline\n(higher is better)")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=10)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    # Screen readers say the label; a width in points would not shrink on a phone.
    return re.sub(
        r'<svg (?:width|height)="[^"]*" (?:width|height)="[^"]*"|<svg ',
        f'<svg role="img" aria-label="{html.escape(title)}" ',
        text,
        count=1,
    )
