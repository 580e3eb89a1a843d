"""What a person sees of a run: live progress at a terminal, plain lines in a log file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


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


class LineReporter(Reporter):
    """Prints a line when a stage begins and when it ends, with the time of day."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def started(self, label: str) -> None:
        """Print which stage begins."""
        self.noted(f"{label} …")

    def finished(self, label: str, seconds: float, error: str = "") -> None:
        """Print how the stage ended."""
        self.noted(f"{label}: FAILED after {seconds:.1f} s: {error}" if error else f"{label}: done in {seconds:.1f} s")

    def noted(self, text: str) -> None:
        """Print it."""
        self._console.print(f"{datetime.now():%H:%M:%S} {text}", highlight=False, soft_wrap=True, markup=False)


class BarReporter(Reporter):
    """Draws a bar for each running stage; a finished stage leaves one line."""

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
        """Add a bar that only pulses until the stage says how far it is."""
        with self._lock:
            self._bars[label] = self.progress.add_task(label, total=None, unit="")

    def progressed(self, label: str, done: float, total: float, unit: str) -> None:
        """Move the stage's bar."""
        with self._lock:
            if label in self._bars:
                self.progress.update(self._bars[label], completed=done, total=total, unit=unit)

    def finished(self, label: str, seconds: float, error: str = "") -> None:
        """Replace the bar by a line."""
        with self._lock:
            if label in self._bars:
                self.progress.remove_task(self._bars.pop(label))
        # Escaped: an error's brackets are its own, not rich's markup.
        if error:
            self._console.print(f"[red]✗[/red] {escape(f'{label}: {error}')}", highlight=False)
        else:
            self._console.print(f"[green]✓[/green] {escape(label)} [dim]{seconds:.1f} s[/dim]", highlight=False)

    def noted(self, text: str) -> None:
        """Print it above the bars."""
        self._console.print(text, highlight=False, markup=False)


def make_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for the tables where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


@contextmanager
def reporter_for(console: Console) -> Iterator[Reporter]:
    """Report with bars at a terminal, with lines elsewhere."""
    if not console.is_terminal:
        yield LineReporter(console)
        return
    bars = BarReporter(console)
    with bars.progress:
        yield bars
