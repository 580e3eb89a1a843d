"""What a person sees of a run: its progress at a terminal or in a log file, and the leaderboard that it ends with."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from storage.results import Row, number

_HEADINGS = ("workload", "candidate", "size", "quality", "latency", "speed-up", "status")


class Reporter:
    """Hears how a run goes and ignores it; labels read ``workload · recipe: stage``."""

    def started(self, label: str) -> None:
        """Hear that a stage begins."""

    def progressed(self, label: str, done: float, total: float, unit: str) -> None:
        """Hear how far a stage is."""

    def finished(self, label: str, seconds: float, error: str = "") -> None:
        """Hear that a stage ended, and why if it failed."""

    def noted(self, text: str) -> None:
        """Hear what a person must know about the run as a whole."""


class _Lines(Reporter):
    """Prints a line when a stage begins and when it ends, with the time of day."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def started(self, label: str) -> None:
        self.noted(f"{label} …")

    def finished(self, label: str, seconds: float, error: str = "") -> None:
        self.noted(f"{label}: FAILED after {seconds:.1f} s: {error}" if error else f"{label}: done in {seconds:.1f} s")

    def noted(self, text: str) -> None:
        self._console.print(f"{datetime.now():%H:%M:%S} {text}", highlight=False, soft_wrap=True, markup=False)


class _Bars(Reporter):
    """Draws a bar for each running stage, which only pulses until the stage says how far it is, and leaves one line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: dict[str, TaskID] = {}
        self._lock = threading.Lock()
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[unit]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )

    def started(self, label: str) -> None:
        with self._lock:
            self._bars[label] = self.progress.add_task(label, total=None, unit="")

    def progressed(self, label: str, done: float, total: float, unit: str) -> None:
        with self._lock:
            if label in self._bars:
                self.progress.update(self._bars[label], completed=done, total=total, unit=unit)

    def finished(self, label: str, seconds: float, error: str = "") -> None:
        with self._lock:
            if label in self._bars:
                self.progress.remove_task(self._bars.pop(label))
        # Escaped: an error's brackets are its own, not rich's markup.
        if error:
            self._console.print(f"[red]✗[/red] {escape(f'{label}: {error}')}", highlight=False)
        else:
            self._console.print(f"[green]✓[/green] {escape(label)} [dim]{seconds:.1f} s[/dim]", highlight=False)

    def noted(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)


def new_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for the tables if there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


@contextmanager
def reporter_for(console: Console) -> Iterator[Reporter]:
    """Report with bars at a terminal, with lines elsewhere."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    bars = _Bars(console)
    with bars.progress:
        yield bars


def leaderboard(rows: Iterable[Row], promotions: Iterable[Row]) -> Table:
    """Render rows of ``measurements`` with what the rows of ``promotions`` say about them."""
    table = Table(title="Leaderboard", title_style="bold", show_lines=False)
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold")
    previous = None
    for workload, *cells in _cells(rows, promotions):
        if previous not in (None, workload):
            table.add_section()
        # Text, not str: brackets in an error would be taken for markup.
        table.add_row(*map(Text, (workload if workload != previous else "", *cells)))
        previous = workload
    return table


def publish_leaderboard(rows: Iterable[Row], promotions: Iterable[Row], report: str) -> None:
    """Show the leaderboard as a table, and link to the report, on the current flow run."""
    import httpx
    from prefect.artifacts import create_link_artifact, create_table_artifact
    from prefect.exceptions import PrefectException

    table = [dict(zip(_HEADINGS, cells, strict=True)) for cells in _cells(rows, promotions)]
    try:
        create_table_artifact(table, key="leaderboard", description="Every candidate of the night against its baseline")
        create_link_artifact(report, link_text=report, key="report", description="The night's report, one HTML file")
    except (httpx.HTTPError, PrefectException) as error:
        # The rows are in the store by now; the flow's own last report will say that the server is gone.
        logging.getLogger(__name__).warning("no leaderboard in Prefect's UI: %s", error)


def _cells(rows: Iterable[Row], promotions: Iterable[Row]) -> Iterator[tuple[str, ...]]:
    """Write out each candidate; in each workload the baseline first, then the fastest."""
    decisions = {
        _key(row): "stays" if row["decision"] == "promote" and row["incumbent_stays"] else str(row["decision"])
        for row in promotions
    }
    primary = {_key(row): row for row in rows if row["setting"] == "primary"}
    for key, row in sorted(primary.items(), key=_rank):
        name, status = f"{key[1]}/{key[2]}", _status(row, decisions.get(key, ""))
        yield key[0], name, _size(row), _quality(row), _latency(row), _speedup(row), status


def _key(row: Row) -> tuple[str, str, str]:
    return str(row["workload"]), str(row["recipe"]), str(row["runtime"])


def _rank(item: tuple[tuple[str, str, str], Row]) -> tuple[str, bool, bool, float]:
    (workload, _, _), row = item
    return workload, not row["is_baseline"], row["status"] == "failed", -(number(row, "speedup") or 0.0)


def _size(row: Row) -> str:
    size, baseline, ratio = (number(row, name) for name in ("size_bytes", "baseline_size_bytes", "size_ratio"))
    if size is None:
        return "–"
    if row["is_baseline"] or baseline is None:
        return f"{size / 1e6:.3f} MB"
    return f"{baseline / 1e6:.3f} → {size / 1e6:.3f} MB, {ratio:.2f}×"


def _quality(row: Row) -> str:
    quality, difference = number(row, "quality"), number(row, "quality_difference")
    if quality is None:
        return "–"
    if row["is_baseline"] or difference is None:
        return f"{row['quality_metric']} {quality:.4g}"
    text = f"{row['quality_metric']} {number(row, 'baseline_quality'):.4g} → {quality:.4g}, {difference:+.3g}"
    low, high = number(row, "quality_difference_low"), number(row, "quality_difference_high")
    return text if low is None or high is None else f"{text} [{low:+.3g}, {high:+.3g}]"


def _latency(row: Row) -> str:
    latency, baseline = number(row, "latency_s"), number(row, "baseline_latency_s")
    if latency is None:
        return "–"
    if row["is_baseline"] or baseline is None:
        return _duration(latency)
    return f"{_duration(baseline)} → {_duration(latency)}"


def _speedup(row: Row) -> str:
    speedup, low, high = (number(row, name) for name in ("speedup", "speedup_low", "speedup_high"))
    if row["is_baseline"]:
        return "baseline"
    return "–" if speedup is None else f"{speedup:.2f}× [{low:.2f}, {high:.2f}]"


def _status(row: Row, decision: str) -> str:
    if row["status"] == "failed":
        return f"failed ({row['stage']}): {row['error']}"
    low, high = number(row, "aa_low"), number(row, "aa_high")
    if row["is_baseline"] and low is not None and high is not None:
        return f"resolution ±{100 * max(high - 1, 1 - low):.1f}%"
    return decision or "ok"


def _duration(seconds: float) -> str:
    """Write seconds in the unit that reads best."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
