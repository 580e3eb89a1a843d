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

from storage.results import Row, number

_WIDTH = 80
_DECISIONS = {"promote": "promoted", "pass": "passes", "hold": "held", "reject": "rejected"}
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


def new_console() -> Console:
    """Return a console as wide as the terminal; where there is none, nothing is wrapped at its width."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


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
        if measured := [line for line in lines if line.decision != "failed"]:
            yield from _table(measured, metric)
        yield from _failures(lines)
        yield from _outcome(lines, [bundle for bundle in bundles if bundle.startswith(f"{workload}/")])


def publish_leaderboard(rows: Iterable[Row], promotions: Sequence[Row], report: str) -> None:
    """Show the leaderboard as a table, and link to the report, on the current flow run."""
    import httpx
    from prefect.artifacts import create_link_artifact, create_table_artifact
    from prefect.exceptions import PrefectException

    primary = sorted((row for row in rows if row["setting"] == "primary"), key=_rank)
    table = [vars(line) for line in _lines(primary, promotions)]
    try:
        create_table_artifact(table, key="leaderboard", description="Every candidate of the night against its baseline")
        create_link_artifact(report, link_text=report, key="report", description="The night's report, one HTML file")
    except (httpx.HTTPError, PrefectException) as error:
        # The rows are in the store by now; the flow's own last report will say that the server is gone.
        logging.getLogger(__name__).warning("no leaderboard in Prefect's UI: %s", error)


def resolution(row: Row) -> float | None:
    """How far from 1 the interval of the A/A check reaches; None where there was none."""
    low, high = number(row, "aa_low"), number(row, "aa_high")
    return None if low is None or high is None else max(high - 1, 1 - low)


def shown_path(path: str) -> str:
    """Write a path in the working folder without that folder's own."""
    here = os.getcwd() + os.sep  # noqa: PTH109 - a URL must stay as it is
    return path.removeprefix(here)


def _baseline(rows: Sequence[Row]) -> str:
    row = next((row for row in rows if row["is_baseline"]), None)
    if row is None or row["status"] == "failed":
        return ""
    latency, size, quality = (number(row, name) for name in ("latency_s", "size_bytes", "quality"))
    parts = ["–" if latency is None else _duration(latency)]
    parts += [] if size is None else [_size(size)]
    parts += [] if quality is None else [f"{row['quality_metric']} {quality:.4g}"]
    if (resolved := resolution(row)) is not None:
        parts.append(f"resolution ±{100 * resolved:.0f}%")
    return f"baseline {row['recipe']}/{row['runtime']}: {', '.join(parts)}"


def _table(lines: Sequence[Line], metric: str) -> Iterator[Text]:
    headings = Line("", "candidate", "smaller", metric, "faster", "", "decision", "")
    cells = [(*astuple(line)[1:5], line.decision) for line in (headings, *lines)]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    widths[0] = min(widths[0], _WIDTH - 2 - sum(widths[1:]) - 2 * 4)
    for position, (name, *numbers, decision) in enumerate(cells):
        aligned = "  ".join(f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:-1], strict=True))
        mark = "★" if decision in ("promoted", "stays") else " "
        text = f"{mark} {_shortened(name, widths[0]):{widths[0]}}  {aligned}  {decision}"
        yield Text(text.rstrip(), style=_STYLES.get(decision, "dim" if position == 0 else ""))


def _failures(lines: Sequence[Line]) -> Iterator[Text]:
    """Tell each failure once, however many candidates it cost."""
    failed = sorted((line for line in lines if line.decision == "failed"), key=lambda line: line.why)
    for why, found in groupby(failed, key=lambda line: line.why):
        names = sorted(_shortened(line.candidate, _WIDTH // 2) for line in found)
        first, _, rest = why.partition("\n")
        more = ' (more: nightquant query "from failures")' if rest else ""
        yield from _wrapped("✗", f"{', '.join(names)} failed: {first}{more}", "bold red")


def _outcome(lines: Sequence[Line], bundles: Sequence[str]) -> Iterator[Text]:
    chosen = next((line for line in lines if line.decision in ("promoted", "stays")), None)
    if chosen is not None:
        yield from _wrapped("→", f"{_shortened(chosen.candidate, _WIDTH // 2)} {chosen.decision}: {chosen.why}")
    elif judged := [line for line in lines if line.decision in _DECISIONS.values()]:
        # What came nearest is the most worth knowing; what passes and was not chosen never is (eager, say).
        order = ("held", "rejected", "passes")
        nearest = min(judged, key=lambda line: order.index(line.decision))
        kept = "the current bundle stays" if bundles else "nothing is handed over"
        name = _shortened(nearest.candidate, _WIDTH // 2)
        yield from _wrapped("→", f"{kept}; nearest is {name}, {nearest.decision}: {nearest.why}")


def _wrapped(mark: str, text: str, style: str = "") -> Iterator[Text]:
    wrapped = textwrap.wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    for position, part in enumerate(wrapped):
        yield Text(f"{mark if position == 0 else ' '} {part}", style=style)


def _lines(rows: Sequence[Row], promotions: Sequence[Row]) -> list[Line]:
    """Write out each candidate; in each workload the baseline is left to the heading, the fastest comes first."""
    decided = {_key(row): row for row in promotions}
    lines = []
    for row in rows:
        found = decided.get(_key(row), {})
        decision = _DECISIONS.get(str(found.get("decision")), "")
        if decision == "promoted" and found.get("incumbent_stays"):
            decision = "stays"
        why = str(found.get("reason") or "")
        if row["status"] == "failed":
            decision, why = "failed", f"{row['stage']}: {row['error']}"
        if decision == "failed" or not row["is_baseline"]:
            name = f"{row['recipe']}/{row['runtime']}"
            shown = _ratio(row, "size_ratio"), _quality(row), _faster(row), _latency(row)
            lines.append(Line(str(row["workload"]), name, *shown, decision, why))
    return lines


def _key(row: Row) -> tuple[str, str, str]:
    return str(row["workload"]), str(row["recipe"]), str(row["runtime"])


def _rank(row: Row) -> tuple[str, bool, bool, float]:
    return str(row["workload"]), not row["is_baseline"], row["status"] == "failed", -(number(row, "speedup") or 0.0)


def _ratio(row: Row, column: str) -> str:
    value = number(row, column)
    return "–" if value is None else f"{value:.2f}×"


def _quality(row: Row) -> str:
    difference = number(row, "quality_difference")
    return "–" if difference is None else f"{difference:+.2g}"


def _faster(row: Row) -> str:
    value, low, high = (number(row, name) for name in ("speedup", "speedup_low", "speedup_high"))
    if value is None or low is None or high is None:
        return "–"
    # Half the interval's width: on the logarithm, where it lies around the ratio.
    return f"{value:.2f}× ±{100 * ((high / low) ** 0.5 - 1):.0f}%"


def _latency(row: Row) -> str:
    latency = number(row, "latency_s")
    return "–" if latency is None else _duration(latency)


def _shortened(name: str, width: int) -> str:
    """Cut out the middle of a name that is too long: recipes tend to differ at their ends."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


def _size(size: float) -> str:
    return f"{size / 1e6:.3g} MB" if size >= 1e5 else f"{size / 1e3:.3g} kB"


def _duration(seconds: float) -> str:
    """Write seconds in the unit that reads best."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
