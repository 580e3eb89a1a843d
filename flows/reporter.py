"""Progress of a run, in timestamped lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

_HEARTBEAT_S = 15.0  # maximum time between consecutive lines about a running stage


class Reporter:
    """Reporter that displays nothing."""

    def started(self, label: str) -> None:
        """Report the start of a stage."""

    def progressed(self, label: str, done: float, total: float, unit: str) -> None:
        """Report a stage's progress."""

    def finished(self, label: str, error: str = "") -> None:
        """Report the end of a stage with the time since `started`, and the error if the stage failed."""

    def noted(self, text: str) -> None:
        """Report a message about the run as a whole."""


@dataclass
class _Running:
    """A running stage; times are from the monotonic clock."""

    began: float
    since: float
    reported: float
    done: float = 0.0
    total: float = 0.0
    unit: str = ""

    def describe(self, now: float) -> str:
        """Describe the stage's progress; once 2% of the work is done, also estimate the remaining time."""
        if not self.total:
            return f"running for {elapsed(now - self.began)}"
        done = f"{self.done:.2f}".rstrip("0").rstrip(".")
        text = f"{done} of {self.total:g} {self.unit}"
        if 0.02 * self.total < self.done < self.total:
            text += f", about {elapsed((now - self.since) * (self.total / self.done - 1))} left"
        return text


class _Lines(Reporter):
    """Reporter that prints timestamped lines when a stage begins, every 15 s while the stage runs, and when it ends."""

    def __init__(self, console: Console) -> None:
        self._console, self._began = console, time.monotonic()
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()
        self.closed = threading.Event()

    def started(self, label: str) -> None:
        with self._lock:
            if label not in self._running:
                now = time.monotonic()
                self._running[label] = _Running(now, now, now)
                self._print(f"{label} …")

    def progressed(self, label: str, done: float, total: float, unit: str) -> None:
        with self._lock:
            if stage := self._running.get(label):
                if total != stage.total or done < stage.done:  # a stage may count several kinds of work in turn
                    stage.since = time.monotonic()
                stage.done, stage.total, stage.unit = done, total, unit

    def finished(self, label: str, error: str = "") -> None:
        with self._lock:
            stage = self._running.pop(label, None)  # None if the message that the stage began was lost
            seconds = time.monotonic() - stage.began if stage else None
            if error:
                text = "FAILED" + (f" after {elapsed(seconds)}" if seconds is not None else "") + f": {error}"
            else:
                text = "done" + (f" in {seconds:.1f} s" if seconds is not None else "")
            self._print(f"{label}: {text}")

    def noted(self, text: str) -> None:
        with self._lock:
            self._print(text)

    def beat(self) -> None:
        """Report long-running stages at regular intervals until the reporter is closed."""
        while not self.closed.wait(_HEARTBEAT_S / 5):
            now = time.monotonic()
            with self._lock:
                for label, stage in self._running.items():
                    if now - stage.reported >= 0.8 * _HEARTBEAT_S:
                        stage.reported = now
                        self._print(f"{label}: {stage.describe(now)}")

    def _print(self, text: str) -> None:
        passed = elapsed(time.monotonic() - self._began)
        self._console.print(f"{passed:>6} {text}", highlight=False, soft_wrap=True, markup=False)


@contextmanager
def reporter_for(console: Console) -> Iterator[Reporter]:
    """Provide a reporter that prints lines."""
    lines = _Lines(console)
    thread = threading.Thread(target=lines.beat, daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        lines.closed.set()
        thread.join()


def elapsed(seconds: float) -> str:
    """Format a duration as minutes and seconds, or as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
