"""What a person sees of a run: live progress at a terminal, plain lines in a log file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from flows.site import Reporter


def make_console() -> Console:
    """The console to print to: as wide as the terminal, and wide enough for the tables where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


class LineReporter:
    """One line when a stage ends, with the time of day; a stage that takes long says so as it starts."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def started(self, label: str) -> None:
        """Say which stage begins."""
        self._line(f"{label} …")

    def progressed(self, label: str, done: float, total: float, unit: str) -> None:
        """Nothing: a log is for what happened."""

    def finished(self, label: str, seconds: float, error: str = "") -> None:
        """Say how the stage ended."""
        self._line(f"{label}: FAILED after {seconds:.1f} s: {error}" if error else f"{label}: done in {seconds:.1f} s")

    def noted(self, text: str) -> None:
        """Say it."""
        self._line(text)

    def _line(self, text: str) -> None:
        self._console.print(f"{datetime.now():%H:%M:%S} {text}", highlight=False, soft_wrap=True, markup=False)


class BarReporter:
    """A bar for each stage at work; a finished stage leaves one line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: dict[str, TaskID] = {}
        self._lock = threading.Lock()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[unit]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )

    @contextmanager
    def live(self) -> Iterator[None]:
        """Draw the bars while the block runs."""
        with self._progress:
            yield

    def started(self, label: str) -> None:
        """Add a bar that only pulses until the stage tells how far it is."""
        with self._lock:
            self._bars[label] = self._progress.add_task(label, total=None, unit="")

    def progressed(self, label: str, done: float, total: float, unit: str) -> None:
        """Move the stage's bar."""
        with self._lock:
            if label in self._bars:
                self._progress.update(self._bars[label], completed=done, total=total, unit=unit)

    def finished(self, label: str, seconds: float, error: str = "") -> None:
        """Replace the bar by a line."""
        with self._lock:
            if label in self._bars:
                self._progress.remove_task(self._bars.pop(label))
        # Escaped: an error's brackets are its own, not rich's markup.
        if error:
            self._console.print(f"[red]✗[/red] {escape(f'{label}: {error}')}", highlight=False)
        else:
            self._console.print(f"[green]✓[/green] {escape(label)} [dim]{seconds:.1f} s[/dim]", highlight=False)

    def noted(self, text: str) -> None:
        """Print it above the bars."""
        self._console.print(text, highlight=False, markup=False)


@contextmanager
def reporter_for(console: Console) -> Iterator[Reporter]:
    """Bars at a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield LineReporter(console)
        return
    bars = BarReporter(console)
    with bars.live():
        yield bars
