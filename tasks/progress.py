"""How a stage tells how far it is, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with work done, all work, and what the unit is; from the stage's own thread, as often as it likes."""

    def __call__(self, done: float, total: float, unit: str = "") -> None:
        """Hear how far the stage is."""


def silent(done: float, total: float, unit: str = "") -> None:
    """Tell nobody."""
