"""Draw a search as inline SVG: the quality drop of each trial, and the path of the search.

`storage.report` imports this module only if the optional package matplotlib is installed.
"""

from __future__ import annotations

import math

from storage.humanize import size_unit
from storage.report.plots import GATE, GREY, drawing, point
from storage.report.search import LOOKS, Search
from storage.results import number

_LARGEST, _SMALLEST = 14.0, 4.0  # diameters of the largest and the smallest dots, in points


def search_plot(title: str, search: Search) -> str:
    """Plot quality drops with 95% intervals against speed-ups, or against sizes if the smallest trial wins.

    A dot's area is proportional to the file size, and a number marks each new best trial. A trial whose interval ends
    far above the bound appears as an arrow at the upper edge. Return ``""`` if no trial has values for both axes.
    """
    drawn = [(row, drop) for row in search.trials if (drop := search.drop(row)) and row[search.ranks_by] is not None]
    if not drawn:
        return ""
    is_timed, largest = search.ranks_by == "speedup", max(number(row, "size_bytes") or 1 for row, _ in drawn)
    unit, scale = ("", 1.0) if is_timed else size_unit(largest)
    top, steps, path = ceiling(search), search.path, dict[int, tuple[float, float]]()
    with drawing(title, search.description) as picture:
        axes = picture.axes
        for row, drop in drawn:
            mark, x = LOOKS[str(row["outcome"])], (number(row, search.ranks_by) or 0.0) / scale
            if row in steps:
                path[steps.index(row) + 1] = (x, drop[0])
            if drop[2] > top:
                axes.plot([x], [1], "^", color=mark.colour, clip_on=False, transform=axes.get_xaxis_transform())
                continue
            low, high = (number(row, f"speedup_{end}") if is_timed else None for end in ("low", "high"))
            diameter = max(_SMALLEST, _LARGEST * math.sqrt((number(row, "size_bytes") or 0.0) / largest))
            point(axes, (x, low or x, high or x), drop, mark, diameter=diameter)
        axes.axhline(0, color=GREY, linewidth=1, linestyle=":")
        if is_timed:
            axes.axvline(1, color=GREY, linewidth=1, linestyle=":")
        if search.bound is not None:
            axes.axhline(search.bound, color=GATE, linewidth=1.2, linestyle="--")
        axes.set_xlim(0, axes.get_xlim()[1] * 1.03)
        axes.locator_params(nbins=6)
        axes.set_xlabel("speed-up (better →)" if is_timed else f"size in {unit} (← better)")
        axes.set_ylabel(f"quality drop{search.unit and f' in {search.unit.strip()}'} (better ↓)")
        axes.plot(
            [x for x, _ in path.values()], [y for _, y in path.values()], color="#1a1a1a", linewidth=1, zorder=1.2
        )
        for step, place in path.items():
            axes.annotate(str(step), place, (8, 5), textcoords="offset points", ha="center", fontsize=9)
    return picture.svg


def ceiling(search: Search) -> float:
    """Return the drop above which a trial appears as an arrow, so that a single bad trial does not flatten the plot."""
    highest = [1.5 * drop[2] for row in search.path if (drop := search.drop(row))]
    top = max([4 * (search.bound or 0.0), *highest])
    return top if top > 0 else math.inf
