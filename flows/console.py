"""Format numbers, tables and the outcome of a run for a terminal with 80 columns."""

from __future__ import annotations

import datetime as dt
import json
import os
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from storage.humanize import MISSING, duration, percent, plural, ratio, size
from storage.results import Row, number
from storage.results.query import open_catalog, rows_of

WIDTH = 80
_OUTCOMES = {"promote": "promoted", "pass": "passes", "hold": "held", "reject": "rejected"}
# Outcomes, closest to promotion first. ``pass`` comes last, because candidates for the eager runtime can pass, but
# cannot be deployed.
_NEAREST = ("hold", "reject", "pass")


class TextTable(Table):
    """A table that shows its cells literally, because a module's name may look like rich markup."""

    def __init__(self, *headings: str, right: Collection[str] = (), **options: Any) -> None:
        """Add a column for each heading; right-align the columns in `right`."""
        super().__init__(**options)
        for heading in headings:
            self.add_column(heading, overflow="fold", justify="right" if heading in right else "left")

    def row(self, *cells: object, style: str = "") -> None:
        """Add a row."""
        self.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells), style=style)


def new_table(title: str, *headings: str, right: Collection[str] = ()) -> TextTable:
    """Return a table with a title and grid lines; long cells wrap."""
    return TextTable(*headings, right=right, title=title)


def plain_table(*headings: str, right: Collection[str] = ()) -> TextTable:
    """Return a table without grid lines; if all headings are empty, omit the header."""
    options = {"box": None, "padding": (0, 2, 0, 0), "pad_edge": False, "header_style": "dim"}
    return TextTable(*headings, right=right, show_header=any(headings), **options)


def marked_lines(lines: Iterable[tuple[str, str | Text]], width: int = 1) -> Table:
    """Return a table with a mark and text on each line; `width` is the width of the mark column."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=width)
    grid.add_column(overflow="fold")
    for mark, text in lines:
        grid.add_row(Text(mark), Text(text) if isinstance(text, str) else text)
    return grid


def faster(row: Row, column: str = "deciding_speedup") -> str:
    """Format a row's speed-up and the half-width of its interval; by default, the speed-up that the gate uses."""
    return ratio_within(*(number(row, f"{column}{end}") for end in ("", "_low", "_high")))


def ratio_within(value: float | None, low: float | None, high: float | None) -> str:
    """Format a ratio and, if its interval is known, the interval's half-width, for example ``5.43× ±3%``."""
    if value is None or not low or not high:
        return ratio(value)
    return f"{ratio(value)} ±{100 * ((high / low) ** 0.5 - 1):.0f}%"


def signed(value: float | None) -> str:
    """Format a difference with its sign, for example ``+0.012``."""
    return MISSING if value is None else f"{value:+.2g}"


def age(span: dt.timedelta) -> str:
    """Format the time since an event in days, hours or minutes, rounded down, for example ``2 days ago``."""
    seconds = span.total_seconds()
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return f"{plural(int(seconds // length), unit)} ago"
    return "just now"


def became(row: Row) -> str:
    """Return a candidate's outcome in one word; `row` is the candidate's row in the ``outcomes`` view."""
    return _OUTCOMES.get(str(row["became"]), str(row["became"] or MISSING))


def metric_of(rows: Sequence[Row]) -> str:
    """Return the name of the quality metric in a workload's rows."""
    return next((str(row["quality_metric"]) for row in rows if row["quality_metric"]), "quality")


def new_console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or 80 columns wide if the output is not a terminal."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(width=WIDTH, stderr=stderr)


def night_lines(outcomes: Sequence[Row], nights: Sequence[Row]) -> Iterator[RenderableType]:
    """Describe each workload in a run: the baseline, the candidates (one line each), and the outcome."""
    night_of = {str(row["workload"]): row for row in nights}
    primary = [row for row in outcomes if row["setting"] == "primary"]
    for workload, group in groupby(primary, key=lambda row: str(row["workload"])):
        rows = list(group)
        yield Text()
        yield Text(workload, style="bold")
        yield from wrapped(" ", _baseline(rows))
        baseline: Row = next((row for row in rows if row["became"] == "baseline"), {})
        for doubt in json.loads(str(baseline.get("doubts") or "[]")):
            yield from wrapped("  warning:", doubt, style="yellow")
        if measured := [row for row in rows if row["became"] not in ("baseline", "failed", "skipped")]:
            yield _table(measured)
        yield from _without_result(rows, "failed", "✗", "bold red")
        yield from _without_result(rows, "skipped", "–")
        yield from _outcome(rows, night_of.get(workload, {}))


def print_leaderboard(store: str, rows: Sequence[Row]) -> None:
    """Print rows of the ``leaderboard`` view as one table for each workload."""
    with open_catalog(store) as connection:
        outcomes = rows_of(connection, "from outcomes where setting = 'primary'")
    found = {(row["workload"], row["candidate"]): row for row in outcomes}
    console = new_console()
    for workload, group in groupby(rows, key=lambda row: str(row["workload"])):
        console.print(Text(workload, style="bold"))
        console.print(_table([found[workload, row["candidate"]] for row in group]))
    console.print(Text("More columns: --format json", style="dim"))


def shown_path(path: str) -> str:
    """Return a path inside the working folder as a relative path; return any other path unchanged."""
    here = os.getcwd() + os.sep  # noqa: PTH109 - pathlib would change a URL
    return path.removeprefix(here)


def _baseline(rows: Sequence[Row]) -> str:
    row = next((row for row in rows if row["is_baseline"] and row["status"] == "ok"), None)
    if row is None:
        return ""
    quality, resolution = number(row, "quality"), number(row, "resolution")
    cold = " with cold caches" if row["caches"] == "cold" else ""
    parts = [f"{duration(number(row, 'deciding_latency_s'))}{cold}", size(number(row, "size_bytes"))]
    parts += [] if quality is None else [f"{row['quality_metric']} {quality:.4g}"]
    parts += [] if resolution is None else [f"noise ±{percent(resolution)}"]
    return f"baseline {row['candidate']}: {', '.join(parts)}"


def _table(rows: Sequence[Row]) -> Table:
    columns = {
        "smaller": [ratio(number(row, "size_ratio")) for row in rows],
        metric_of(rows).replace("_", "\n"): [signed(number(row, "quality_difference")) for row in rows],
        "int8": [MISSING if row["method"] == "none" else ratio(number(row, "int8_gain")) for row in rows],
        "over float": [faster(row, "over_best_float") for row in rows],
        "cold" if rows[0]["caches"] == "cold" else "faster": [faster(row) for row in rows],
    }
    # If the fastest float candidate is the baseline, both gains are the same.
    if all(row["best_float"] in (None, row["baseline"]) for row in rows):
        columns.pop("over float")
    numbers, cells = tuple(columns), [(*texts,) for texts in zip(*columns.values(), map(became, rows), strict=True)]
    table = plain_table("  candidate", *numbers, "decision", right=numbers)
    headings = [max(heading.split("\n"), key=len) for heading in (*numbers, "decision")]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    room = WIDTH - 2 - sum(2 + width for width in widths)
    for row, texts in zip(rows, cells, strict=True):
        is_current = row["became"] in ("promote", "stays")
        name = f"{'★' if is_current else ' '} {shortened(str(row['candidate']), room)}"
        table.row(name, *texts, style="bold green" if is_current else "")
    return table


def _without_result(rows: Sequence[Row], outcome: str, mark: str, style: str = "") -> Iterator[Text]:
    """List the candidates whose outcome is `outcome` (failed or skipped), grouped by reason."""
    affected = sorted((row for row in rows if row["became"] == outcome), key=lambda row: str(row["why"]))
    for why, group in groupby(affected, key=lambda row: str(row["why"])):
        names = sorted(shortened(str(row["candidate"]), WIDTH // 2) for row in group)
        first, _, rest = why.partition("\n")
        more = ' (more: nightquant query "from failures")' if rest else ""
        yield from wrapped(mark, f"{', '.join(names)} {outcome}: {first}{more}", style)


def _outcome(rows: Sequence[Row], night: Row) -> Iterator[Text]:
    chosen = next((row for row in rows if row["became"] in ("promote", "stays")), None)
    if chosen is not None:
        why = str(chosen["why"]).removeprefix("stays: ")
        yield from wrapped("→", f"{shortened(str(chosen['candidate']), WIDTH // 2)} {became(chosen)}: {why}")
        yield from wrapped(" ", gains(chosen))
    elif judged := [row for row in rows if row["became"] in _NEAREST]:
        nearest = min(judged, key=lambda row: _NEAREST.index(str(row["became"])))
        result = "no bundle is published"
        if night.get("outcome") == "kept":
            result = "the current bundle stays"
            nearest = next((row for row in judged if row["over_current"] and row["became"] == "pass"), nearest)
        elif night.get("warning"):
            result = "the current bundle is unknown"
        name = shortened(str(nearest["candidate"]), WIDTH // 2)
        yield from wrapped("→", f"{result}; the closest candidate is {name}, {became(nearest)}: {nearest['why']}")


def gains(row: Row) -> str:
    """Say what a quantized candidate gains over the best float candidate, and how its speed-up is composed."""
    over, runtime, int8 = (number(row, column) for column in ("over_best_float", "runtime_gain", "int8_gain"))
    if row["method"] == "none" or over is None or runtime is None or int8 is None:
        return ""
    speedup, dtype = number(row, "deciding_speedup"), "bfloat16" if row["method"] == "cast" else "int8"
    return (
        f"{ratio(over)} as fast as {row['best_float']}, the fastest float; over the baseline, "
        f"{ratio(runtime)} by the runtime and {ratio(int8)} by {dtype}, "
        f"together {ratio(speedup)}"
    )


def wrapped(mark: str, text: str, style: str = "") -> Iterator[Text]:
    """Wrap `text` to the line width, with `mark` in front of the first line."""
    wrapper = textwrap.TextWrapper(WIDTH, f"{mark} ", "  ", break_long_words=False, break_on_hyphens=False)
    for part in wrapper.wrap(text):
        yield Text(part, style=style)


def shortened(name: str, width: int) -> str:
    """Replace the middle of a long name with "…", because recipe names tend to differ at the end."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"
