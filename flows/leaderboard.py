"""The table that a run ends with, at the terminal and in Prefect's UI: every candidate against its baseline."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from rich.table import Table
from rich.text import Text

from tasks.record import Row

Decisions = Mapping[tuple[str, str, str], str]  # of the gate, by (workload, recipe, runtime)
_HEADINGS = ("workload", "candidate", "size", "quality", "latency", "speed-up", "status")


def leaderboard(rows: Iterable[Row], decisions: Decisions) -> Table:
    """Render rows of ``measurements`` (setting ``primary``, last attempt) with what the gate decided on each."""
    table = Table(title="Leaderboard", title_style="bold", show_lines=False)
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold")
    previous = None
    for workload, *cells in _lines(rows, decisions):
        if previous not in (None, workload):
            table.add_section()
        # Text, not str: brackets in an error would be taken for markup.
        table.add_row(*map(Text, (workload if workload != previous else "", *cells)))
        previous = workload
    return table


def publish_leaderboard(rows: Iterable[Row], decisions: Decisions, report: str) -> None:
    """Show the leaderboard as a table, and link to the report, on the current flow run."""
    import httpx
    from prefect.artifacts import create_link_artifact, create_table_artifact
    from prefect.exceptions import PrefectException

    table = [dict(zip(_HEADINGS, cells, strict=True)) for cells in _lines(rows, decisions)]
    try:
        create_table_artifact(table, key="leaderboard", description="Every candidate of the night against its baseline")
        create_link_artifact(report, link_text=report, key="report", description="The night's report, one HTML file")
    except (httpx.HTTPError, PrefectException) as error:
        # The rows are in the store by now; the flow's own last report will say that the server is gone.
        logging.getLogger(__name__).warning("no leaderboard in Prefect's UI: %s", error)


def _lines(rows: Iterable[Row], decisions: Decisions) -> Iterator[tuple[str, ...]]:
    """Write out each candidate's last attempt; in each workload the baseline first, then the fastest."""
    last: dict[tuple[str, str, str], Row] = {}
    for row in sorted(rows, key=lambda row: row["attempt"]):
        if row["setting"] == "primary":
            last[row["workload"], row["recipe"], row["runtime"]] = row
    for key, row in sorted(last.items(), key=lambda item: _rank(item[1])):
        yield (
            row["workload"],
            f"{row['recipe']}/{row['runtime']}",
            _size(row),
            _quality(row),
            _latency(row),
            _speedup(row),
            _status(row, decisions.get(key, "")),
        )


def _rank(row: Row) -> tuple[str, bool, bool, float]:
    return row["workload"], not row["is_baseline"], row["status"] == "failed", -(row.get("speedup") or 0.0)


def _size(row: Row) -> str:
    """Baseline and candidate size in MB (10⁶ bytes) and their ratio."""
    size, baseline = row.get("size_bytes"), row.get("baseline_size_bytes")
    if size is None:
        return "–"
    if row["is_baseline"] or baseline is None:
        return f"{size / 1e6:.3f} MB"
    return f"{baseline / 1e6:.3f} → {size / 1e6:.3f} MB, {row['size_ratio']:.2f}×"


def _quality(row: Row) -> str:
    """Baseline and candidate quality and the difference, with its paired interval where there is one."""
    quality, metric = row.get("quality"), row.get("quality_metric")
    if quality is None:
        return "–"
    if row["is_baseline"] or row.get("quality_difference") is None:
        return f"{metric} {quality:.4g}"
    text = f"{metric} {row['baseline_quality']:.4g} → {quality:.4g}, {row['quality_difference']:+.3g}"
    low, high = row.get("quality_difference_low"), row.get("quality_difference_high")
    return text if low is None or high is None else f"{text} [{low:+.3g}, {high:+.3g}]"


def _latency(row: Row) -> str:
    """Baseline and candidate median latency."""
    latency, baseline = row.get("latency_s"), row.get("baseline_latency_s")
    if latency is None:
        return "–"
    if row["is_baseline"] or baseline is None:
        return _duration(latency)
    return f"{_duration(baseline)} → {_duration(latency)}"


def _speedup(row: Row) -> str:
    """Baseline latency ÷ candidate latency with its 95% interval."""
    if row["is_baseline"]:
        return "baseline"
    if row.get("speedup") is None:
        return "–"
    return f"{row['speedup']:.2f}× [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"


def _status(row: Row, decision: str) -> str:
    """What became of the candidate, its verdict unless it is valid, and the gate's decision."""
    if row["status"] == "failed":
        return f"failed ({row['stage']}): {row['error']}"
    if row.get("verdict") == "inconclusive":
        return f"inconclusive, {decision}" if decision else "inconclusive"
    return decision or "ok"


def _duration(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
