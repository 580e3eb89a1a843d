"""How a night ends for a person: what was promoted or why nothing was, in lines that fit into 80 columns."""

from __future__ import annotations

import datetime as dt
import logging
import os
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from flows.execution.server import own_server_died
from flows.tables import plain_table
from flows.text import became, faster, signed
from storage.humanize import duration, ratio, size
from storage.results import Row, number
from storage.results.query import open_catalog, rows_of

_WIDTH = 80
# What came nearest to a promotion is the most worth knowing; what passes and was not chosen never does (eager, say).
_NEAREST = ("hold", "reject", "pass")


def new_console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or of 80 columns where there is none."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(width=_WIDTH, stderr=stderr)


def outcomes_of_run(store: str, run_id: str) -> list[Row]:
    """Return what became of a run's candidates, the best one of each workload first."""
    with open_catalog(store) as connection:
        return rows_of(connection, "from outcomes_of([$run]) order by workload, rank", run=run_id)


def nights_of_run(store: str, run_id: str, night: dt.date) -> list[Row]:
    """Return what became of the workloads that a run decided on."""
    with open_catalog(store) as connection:
        return rows_of(connection, "from nights_on($night) where run_id = $run", night=night, run=run_id)


def night_lines(outcomes: Sequence[Row], nights: Sequence[Row]) -> Iterator[RenderableType]:
    """Describe every workload of a run: its baseline, a line a candidate, and what came of it.

    Parameters
    ----------
    outcomes, nights
        The run's rows of the views ``outcomes`` and ``nights``.
    """
    came = {str(row["workload"]): row for row in nights}
    primary = [row for row in outcomes if row["setting"] == "primary"]
    for workload, found in groupby(primary, key=lambda row: str(row["workload"])):
        rows = list(found)
        yield Text()
        yield Text(workload, style="bold")
        yield from _wrapped(" ", _baseline(rows))
        if measured := [row for row in rows if row["became"] not in ("baseline", "failed", "skipped")]:
            yield _table(measured)
        yield from _without_result(rows, "failed", "✗", "bold red")
        yield from _without_result(rows, "skipped", "–")
        yield from _outcome(rows, came.get(workload, {}))


def publish_leaderboard(outcomes: Sequence[Row], report: str) -> None:
    """Show the leaderboard as a table, and link to the report if there is one, on the current flow run."""
    import httpx
    from prefect.artifacts import create_link_artifact, create_table_artifact
    from prefect.exceptions import PrefectException

    if own_server_died():
        logging.getLogger(__name__).warning("no leaderboard in Prefect's UI: its server died")
        return
    shown = [row for row in outcomes if row["setting"] == "primary" and row["became"] != "baseline"]
    table = [
        {
            "workload": row["workload"],
            "candidate": row["candidate"],
            "smaller": ratio(number(row, "size_ratio")),
            "quality": signed(number(row, "quality_difference")),
            "faster": faster(row),
            "latency": duration(number(row, "deciding_latency_s")),
            "decision": became(row),
            "why": row["why"] or "",
        }
        for row in shown
    ]
    try:
        create_table_artifact(table, key="leaderboard", description="Every candidate of the night against its baseline")
        if report:
            link = "The night's report, one HTML file"
            create_link_artifact(report, link_text=report, key="report", description=link)
    except (httpx.HTTPError, PrefectException) as error:
        # The rows are in the store by now; the flow's own last report will say that the server is gone.
        logging.getLogger(__name__).warning("no leaderboard in Prefect's UI: %s", error)


def shown_path(path: str) -> str:
    """Write a path in the working folder without that folder's own."""
    here = os.getcwd() + os.sep  # noqa: PTH109 - a URL must stay as it is
    return path.removeprefix(here)


def _baseline(rows: Sequence[Row]) -> str:
    row = next((row for row in rows if row["became"] == "baseline"), None)
    if row is None:
        return ""
    quality, resolution = number(row, "quality"), number(row, "resolution")
    cold = " with cold caches" if row["caches"] == "cold" else ""
    parts = [f"{duration(number(row, 'deciding_latency_s'))}{cold}", size(number(row, "size_bytes"))]
    parts += [] if quality is None else [f"{row['quality_metric']} {quality:.4g}"]
    parts += [] if resolution is None else [f"resolution ±{100 * resolution:.0f}%"]
    return f"baseline {row['candidate']}: {', '.join(parts)}"


def _table(rows: Sequence[Row]) -> Table:
    metric = next((str(row["quality_metric"]) for row in rows if row["quality_metric"]), "quality")
    numbers = ("smaller", metric, "cold" if rows[0]["caches"] == "cold" else "faster")
    table = plain_table("  candidate", *numbers, "decision", right=numbers)
    cells = [
        (ratio(number(row, "size_ratio")), signed(number(row, "quality_difference")), faster(row), became(row))
        for row in rows
    ]
    columns = zip((*numbers, "decision"), *cells, strict=True)
    room = _WIDTH - 2 - sum(2 + max(map(len, column)) for column in columns)
    for row, shown in zip(rows, cells, strict=True):
        is_current = row["became"] in ("promote", "stays")
        name = f"{'★' if is_current else ' '} {_shortened(str(row['candidate']), room)}"
        table.add_row(*map(Text, (name, *shown)), style="bold green" if is_current else "")
    return table


def _without_result(rows: Sequence[Row], outcome: str, mark: str, style: str = "") -> Iterator[Text]:
    """Say each reason for having failed or been skipped once, however many candidates it cost."""
    found = sorted((row for row in rows if row["became"] == outcome), key=lambda row: str(row["why"]))
    for why, alike in groupby(found, key=lambda row: str(row["why"])):
        names = sorted(_shortened(str(row["candidate"]), _WIDTH // 2) for row in alike)
        first, _, rest = why.partition("\n")
        more = ' (more: nightquant query "from failures")' if rest else ""
        yield from _wrapped(mark, f"{', '.join(names)} {outcome}: {first}{more}", style)


def _outcome(rows: Sequence[Row], night: Row) -> Iterator[Text]:
    chosen = next((row for row in rows if row["became"] in ("promote", "stays")), None)
    if chosen is not None:
        why = str(chosen["why"]).removeprefix("stays: ")
        yield from _wrapped("→", f"{_shortened(str(chosen['candidate']), _WIDTH // 2)} {became(chosen)}: {why}")
    elif judged := [row for row in rows if row["became"] in _NEAREST]:
        nearest = min(judged, key=lambda row: _NEAREST.index(str(row["became"])))
        name = _shortened(str(nearest["candidate"]), _WIDTH // 2)
        stands = "nothing is handed over"
        if night.get("outcome") == "kept":
            stands = "the current bundle stays"
        elif night.get("warning"):
            stands = "the current bundle is unknown"
        yield from _wrapped("→", f"{stands}; nearest is {name}, {became(nearest)}: {nearest['why']}")


def _wrapped(mark: str, text: str, style: str = "") -> Iterator[Text]:
    wrapped = textwrap.wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    for position, part in enumerate(wrapped):
        yield Text(f"{mark if position == 0 else ' '} {part}", style=style)


def _shortened(name: str, width: int) -> str:
    """Cut out the middle of a name that is too long: recipes tend to differ at their ends."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"
