"""How a night ends for a person: what was promoted or why nothing was, in lines that fit into 80 columns."""

from __future__ import annotations

import logging
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby

from rich.console import Console
from rich.text import Text

from flows.execution.server import own_server_died
from flows.text import decided, faster, signed
from storage.humanize import duration, ratio, size
from storage.results import Row, caches_of, deciding, number

_WIDTH = 80
# What came nearest to a promotion is the most worth knowing; what passes and was not chosen never does (eager, say).
_NEAREST = ("held", "rejected", "passes")
_STYLES = {"promoted": "bold green", "stays": "bold green", "failed": "bold red"}


@dataclass(frozen=True)
class Line:
    """One candidate, as it is shown; ``why`` is the gate's reason or the error."""

    workload: str
    candidate: str
    smaller: str
    quality: str
    faster: str
    latency: str
    decision: str
    why: str


def new_console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or of 80 columns where there is none."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(width=_WIDTH, stderr=stderr)


def night_lines(rows: Sequence[Row], promotions: Sequence[Row], bundles: Iterable[str]) -> Iterator[Text]:
    """Describe every workload of a run: its baseline, a line a candidate, and what came of it.

    Parameters
    ----------
    rows, promotions
        The run's rows of ``measurements`` and of ``promotions``.
    bundles
        The bundles that are current, as ``workload/version``.
    """
    primary = [row for row in rows if row["setting"] == "primary"]
    for workload, found in groupby(sorted(primary, key=_rank), key=lambda row: str(row["workload"])):
        mine = list(found)
        lines = _lines(mine, promotions)
        metric = next((str(row["quality_metric"]) for row in mine if row.get("quality_metric")), "quality")
        yield Text()
        yield Text(workload, style="bold")
        yield from _wrapped(" ", _baseline(mine))
        if measured := [line for line in lines if line.decision not in ("failed", "skipped")]:
            yield from _table(measured, metric, "cold" if caches_of(mine[0]) == "cold" else "faster")
        yield from _without_result(lines, "failed", "✗", "bold red")
        yield from _without_result(lines, "skipped", "–")
        yield from _outcome(lines, _in_service(workload, promotions, bundles))


def publish_leaderboard(rows: Iterable[Row], promotions: Sequence[Row], report: str) -> None:
    """Show the leaderboard as a table, and link to the report if there is one, on the current flow run."""
    import httpx
    from prefect.artifacts import create_link_artifact, create_table_artifact
    from prefect.exceptions import PrefectException

    if own_server_died():
        logging.getLogger(__name__).warning("no leaderboard in Prefect's UI: its server died")
        return
    primary = sorted((row for row in rows if row["setting"] == "primary"), key=_rank)
    table = [vars(line) for line in _lines(primary, promotions)]
    try:
        create_table_artifact(table, key="leaderboard", description="Every candidate of the night against its baseline")
        if report:
            link = "The night's report, one HTML file"
            create_link_artifact(report, link_text=report, key="report", description=link)
    except (httpx.HTTPError, PrefectException) as error:
        # The rows are in the store by now; the flow's own last report will say that the server is gone.
        logging.getLogger(__name__).warning("no leaderboard in Prefect's UI: %s", error)


def resolution(row: Row) -> float | None:
    """How far from 1 the interval of the A/A check reaches; None where there was none."""
    low, high = number(row, deciding(row, "aa_low")), number(row, deciding(row, "aa_high"))
    return None if low is None or high is None else max(high - 1, 1 - low)


def shown_path(path: str) -> str:
    """Write a path in the working folder without that folder's own."""
    here = os.getcwd() + os.sep  # noqa: PTH109 - a URL must stay as it is
    return path.removeprefix(here)


def _baseline(rows: Sequence[Row]) -> str:
    row = next((row for row in rows if row["is_baseline"]), None)
    if row is None or row["status"] != "ok":
        return ""
    quality = number(row, "quality")
    cold = " with cold caches" if caches_of(row) == "cold" else ""
    parts = [f"{duration(number(row, deciding(row, 'latency_s')))}{cold}", size(number(row, "size_bytes"))]
    parts += [] if quality is None else [f"{row['quality_metric']} {quality:.4g}"]
    if (resolved := resolution(row)) is not None:
        parts.append(f"resolution ±{100 * resolved:.0f}%")
    return f"baseline {row['recipe']}/{row['runtime']}: {', '.join(parts)}"


def _table(lines: Sequence[Line], metric: str, speed: str) -> Iterator[Text]:
    headings = Line("", "candidate", "smaller", metric, speed, "", "decision", "")
    cells = [(*astuple(line)[1:5], line.decision) for line in (headings, *lines)]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    widths[0] = min(widths[0], _WIDTH - 2 - sum(widths[1:]) - 2 * 4)
    for position, (name, *numbers, decision) in enumerate(cells):
        aligned = "  ".join(f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:-1], strict=True))
        mark = "★" if decision in ("promoted", "stays") else " "
        text = f"{mark} {_shortened(name, widths[0]):{widths[0]}}  {aligned}  {decision}"
        yield Text(text.rstrip(), style=_STYLES.get(decision, "dim" if position == 0 else ""))


def _without_result(lines: Sequence[Line], decision: str, mark: str, style: str = "") -> Iterator[Text]:
    """Tell each reason for having failed or been skipped once, however many candidates it cost."""
    found = sorted((line for line in lines if line.decision == decision), key=lambda line: line.why)
    for why, alike in groupby(found, key=lambda line: line.why):
        names = sorted(_shortened(line.candidate, _WIDTH // 2) for line in alike)
        first, _, rest = why.partition("\n")
        more = ' (more: nightquant query "from failures")' if rest else ""
        yield from _wrapped(mark, f"{', '.join(names)} {decision}: {first}{more}", style)


def _in_service(workload: str, promotions: Sequence[Row], bundles: Iterable[str]) -> str:
    """Say what is in service where no candidate was promoted."""
    if any(bundle.startswith(f"{workload}/") for bundle in bundles):
        return "the current bundle stays"
    mine = [row for row in promotions if row["workload"] == workload]
    if any(row.get("incumbent_reason") and row.get("incumbent_stays") is None for row in mine):
        return "the current bundle is unknown"
    return "nothing is handed over"


def _outcome(lines: Sequence[Line], in_service: str) -> Iterator[Text]:
    chosen = next((line for line in lines if line.decision in ("promoted", "stays")), None)
    if chosen is not None:
        yield from _wrapped("→", f"{_shortened(chosen.candidate, _WIDTH // 2)} {chosen.decision}: {chosen.why}")
    elif judged := [line for line in lines if line.decision in _NEAREST]:
        nearest = min(judged, key=lambda line: _NEAREST.index(line.decision))
        name = _shortened(nearest.candidate, _WIDTH // 2)
        yield from _wrapped("→", f"{in_service}; nearest is {name}, {nearest.decision}: {nearest.why}")


def _wrapped(mark: str, text: str, style: str = "") -> Iterator[Text]:
    wrapped = textwrap.wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    for position, part in enumerate(wrapped):
        yield Text(f"{mark if position == 0 else ' '} {part}", style=style)


def _lines(rows: Sequence[Row], promotions: Sequence[Row]) -> list[Line]:
    """Write out each candidate; in each workload the baseline is left to the heading, the fastest comes first."""
    judged = {_key(row): row for row in promotions}
    lines = []
    for row in rows:
        found = judged.get(_key(row), {})
        failed = row["status"] != "ok"
        if row["is_baseline"] and not failed:
            continue
        lines.append(
            Line(
                workload=str(row["workload"]),
                candidate=f"{row['recipe']}/{row['runtime']}",
                smaller=ratio(number(row, "size_ratio")),
                quality=signed(number(row, "quality_difference")),
                faster=faster(row, caches_of(row)),
                latency=duration(number(row, deciding(row, "latency_s"))),
                decision=decided(found.get("decision"), found.get("incumbent_stays"), row["status"]),
                why=f"{row['stage']}: {row['error']}" if failed else str(found.get("reason") or ""),
            )
        )
    return lines


def _key(row: Row) -> tuple[str, str, str]:
    return str(row["workload"]), str(row["recipe"]), str(row["runtime"])


def _rank(row: Row) -> tuple[str, bool, bool, float]:
    return (
        str(row["workload"]),
        not row["is_baseline"],
        row["status"] != "ok",
        -(number(row, deciding(row, "speedup")) or 0.0),
    )


def _shortened(name: str, width: int) -> str:
    """Cut out the middle of a name that is too long: recipes tend to differ at their ends."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"
