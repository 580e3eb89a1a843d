"""The leaderboard in a terminal: one line per candidate, with as many columns as fit."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from flows.console import became, faster, int8_gain, over_best_float, plain_table, shortened, signed
from storage import humanize
from storage.humanize import MISSING, cut, duration, quality_unit, ratio, size
from storage.results import Row, number
from storage.results.query import open_catalog, rows_of

NARROWEST = 80
# Columns of the ``leaderboard`` view, keyed by heading. The first eight columns always fit, because long names are
# shortened.
_HEADINGS = {
    "workload": "workload",
    "candidate": "candidate",
    "decision": "decision",
    "int8": "int8_gain",
    "over float": "over_best_float",
    "faster": "speedup",
    "smaller": "size_ratio",
    "quality": "quality_difference",
    "runtime": "runtime_gain",
    "latency": "latency_ms",
    "cold": "cold_speedup",
    "memory": "memory_mb",
    "requests/s": "capacity_rps",
    "serves": "capacity_ratio",
    "p50": "capacity_p50_ms",
    "p99": "capacity_p99_ms",
    "p99.9": "capacity_p999_ms",
    "cost": "cost_per_million",
    "why": "why",
}
COLUMNS = {"rank", "interval", *_HEADINGS.values()}
_ALWAYS = 8
_TEXTS = ("workload", "candidate", "decision", "why")
_LONGEST_WORKLOAD = 16
_SHORTEST_REASON = 24  # a shorter excerpt from the reason would not be informative
_GAP = 2
# Capacity columns. Few workloads measure capacity, so a column without values is left out.
_RARE = ("requests/s", "serves", "p50", "p99", "p99.9", "cost")


def leaderboard_rows(store: str, rows: Sequence[Row]) -> list[Row]:
    """Add the columns of the ``outcomes`` view to rows of the ``leaderboard`` view."""
    with open_catalog(store) as connection:
        outcomes = rows_of(connection, "from outcomes where setting = 'primary'")
    by_candidate = {(row["workload"], row["candidate"]): row for row in outcomes}
    # Keep the ``leaderboard`` view's ``why`` column, because its texts are shorter than those in the ``outcomes`` view.
    return [{**row, **by_candidate.get((row["workload"], row["candidate"]), row), "why": row["why"]} for row in rows]


def leaderboard_table(rows: Sequence[Row], width: int) -> tuple[Table, str]:
    """Lay out rows from `leaderboard_rows` in lines of up to `width` characters; `width` must be at least `NARROWEST`.

    Return the table, and a line that lists the omitted columns.
    """
    cells = [_cells(row) for row in rows]
    empty = {heading for heading in _RARE if all(texts[heading] == MISSING for texts in cells)}
    headings = [heading for heading in _HEADINGS if heading not in empty]
    widths = {heading: max(len(heading), *(len(texts[heading]) for texts in cells)) for heading in headings}
    shown = headings[:_ALWAYS]
    room = width - sum(widths[heading] + _GAP for heading in shown if heading != "candidate")
    widths["candidate"] = min(widths["candidate"], room)
    room -= widths["candidate"]
    for heading in headings[_ALWAYS:]:
        needed = min(widths[heading], _SHORTEST_REASON) if heading == "why" else widths[heading]
        if needed + _GAP <= room:
            shown.append(heading)
            widths[heading] = min(widths[heading], room - _GAP)
            room -= widths[heading] + _GAP
    table = plain_table(*shown, right=[heading for heading in shown if heading not in _TEXTS])
    for row, texts in zip(rows, cells, strict=True):
        texts["candidate"] = shortened(texts["candidate"], widths["candidate"])
        texts["why"] = cut(texts["why"], widths["why"])
        is_current = row["became"] in ("promote", "stays")
        table.row(*(texts[heading] for heading in shown), style="bold green" if is_current else "")
    omitted = sorted(COLUMNS - {"interval"} - {_HEADINGS[heading] for heading in (*shown, *empty)})
    return table, f"Not shown: {', '.join(omitted)} (--format json)"


def _cells(row: Row) -> dict[str, str]:
    difference, milliseconds = number(row, "quality_difference"), number(row, "latency_ms")
    unit = "" if difference is None else quality_unit(str(row["quality_metric"]))
    return {
        "workload": shortened(str(row["workload"]), _LONGEST_WORKLOAD),
        "candidate": str(row["candidate"]),
        "decision": became(row),
        "int8": int8_gain(row),
        "over float": over_best_float(row),
        "faster": ratio(1.0) if row["became"] == "baseline" else faster(row),
        "smaller": ratio(number(row, "size_ratio")),
        "quality": f"{signed(difference)}{unit}",
        "runtime": ratio(number(row, "runtime_gain")),
        "latency": duration(None if milliseconds is None else milliseconds / 1e3),
        "cold": ratio(number(row, "cold_speedup")),
        "memory": size(number(row, "peak_rss_bytes")),
        "requests/s": humanize.number(number(row, "capacity_rps"), ",.4g"),
        "serves": ratio(number(row, "capacity_ratio")),
        "p50": duration(number(row, "capacity_p50_s")),
        "p99": duration(number(row, "capacity_p99_s")),
        "p99.9": duration(number(row, "capacity_p999_s")),
        "cost": humanize.number(number(row, "cost_per_million")),
        "why": str(row["why"] or MISSING),
    }
