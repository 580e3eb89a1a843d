"""The table that a run ends with: every candidate of the night against its baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

_HEADINGS = ("workload", "candidate", "size", "quality", "latency", "speed-up", "status")


def leaderboard(rows: Iterable[Mapping[str, Any]], decisions: Mapping[tuple[str, str, str], str]) -> Table:
    """Render rows of ``measurements`` (setting ``primary``, last attempt) with what the gate decided on each."""
    table = Table(title="Leaderboard", title_style="bold", show_lines=False)
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold")
    previous = None
    for row in last_attempts(rows):
        if previous not in (None, row["workload"]):
            table.add_section()
        cells = (
            row["workload"] if row["workload"] != previous else "",
            f"{row['recipe']}/{row['runtime']}",
            size_text(row),
            quality_text(row),
            latency_text(row),
            speedup_text(row),
            status_text(row, decisions.get((row["workload"], row["recipe"], row["runtime"]), "")),
        )
        # Text, not str: brackets in an error would be taken for markup.
        table.add_row(*map(Text, cells))
        previous = row["workload"]
    return table


def last_attempts(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows that count: each candidate's last attempt; in each workload the baseline first, then the fastest."""
    last: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["attempt"]):
        if row["setting"] == "primary":
            last[row["workload"], row["recipe"], row["runtime"]] = row
    return sorted(last.values(), key=_rank)


def _rank(row: Mapping[str, Any]) -> tuple[str, bool, bool, float]:
    return row["workload"], not row["is_baseline"], row["status"] == "failed", -(row.get("speedup") or 0.0)


def size_text(row: Mapping[str, Any]) -> str:
    """Baseline and candidate size in MB (10⁶ bytes) and their ratio."""
    size, baseline = row.get("size_bytes"), row.get("baseline_size_bytes")
    if size is None:
        return "–"
    if row["is_baseline"] or baseline is None:
        return f"{size / 1e6:.3f} MB"
    return f"{baseline / 1e6:.3f} → {size / 1e6:.3f} MB, {row['size_ratio']:.2f}×"


def quality_text(row: Mapping[str, Any]) -> str:
    """Baseline and candidate quality and the difference, with its paired interval where there is one."""
    quality, metric = row.get("quality"), row.get("quality_metric")
    if quality is None:
        return "–"
    if row["is_baseline"] or row.get("quality_difference") is None:
        return f"{metric} {quality:.4g}"
    text = f"{metric} {row['baseline_quality']:.4g} → {quality:.4g}, {row['quality_difference']:+.3g}"
    low, high = row.get("quality_difference_low"), row.get("quality_difference_high")
    return text if low is None or high is None else f"{text} [{low:+.3g}, {high:+.3g}]"


def latency_text(row: Mapping[str, Any]) -> str:
    """Baseline and candidate median latency."""
    latency, baseline = row.get("latency_s"), row.get("baseline_latency_s")
    if latency is None:
        return "–"
    if row["is_baseline"] or baseline is None:
        return duration_text(latency)
    return f"{duration_text(baseline)} → {duration_text(latency)}"


def speedup_text(row: Mapping[str, Any]) -> str:
    """Baseline latency ÷ candidate latency with its 95% interval."""
    if row["is_baseline"]:
        return "baseline"
    if row.get("speedup") is None:
        return "–"
    return f"{row['speedup']:.2f}× [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"


def status_text(row: Mapping[str, Any], decision: str) -> str:
    """What became of the candidate, its verdict where that is not plain, and the gate's decision."""
    if row["status"] == "failed":
        return f"failed ({row['stage']}): {row['error']}"
    if row.get("verdict") == "inconclusive":
        return f"inconclusive, {decision}" if decision else "inconclusive"
    return decision or "ok"


def duration_text(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
