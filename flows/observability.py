"""What Prefect's UI shows of a night besides its log: long stages' progress, the leaderboard, where the report lies."""

from __future__ import annotations

import contextvars
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx
from prefect.artifacts import (
    create_link_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.exceptions import PrefectException

from flows.leaderboard import last_attempts, latency_text, quality_text, size_text, speedup_text, status_text

_FIRST_AFTER_S, _EVERY_S = 5.0, 5.0


@dataclass
class ProgressArtifact:
    """A stage's progress as an artifact of its task run; made only for a stage that takes a while.

    Its updates come from the thread that listens to the workers, which has no run context of its own: it is taken along
    from where this object is made.
    """

    label: str
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)
    _next: float = field(default_factory=lambda: time.monotonic() + _FIRST_AFTER_S)
    _artifact: UUID | None = None

    def progressed(self, done: float, total: float, unit: str) -> None:
        """Make or move the bar, every few seconds at most."""
        if total <= 0 or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY_S
        self._try_to_show(min(100.0, 100.0 * done / total), f"{self.label}: {unit}")

    def finished(self) -> None:
        """Fill the bar, where there is one."""
        if self._artifact is not None:
            self._try_to_show(100.0, self.label)

    def _try_to_show(self, percent: float, description: str) -> None:
        try:
            self._context.run(self._show, percent, description)
        except (httpx.HTTPError, PrefectException) as error:
            # A picture for the eye: its server being gone must not end the thread that also feeds the terminal.
            self._next = math.inf
            logging.getLogger(__name__).warning("%s: no more progress in Prefect's UI: %s", self.label, error)

    def _show(self, percent: float, description: str) -> None:
        if self._artifact is None:
            made = create_progress_artifact(percent, description=description)
            self._artifact = made if isinstance(made, UUID) else None
        else:
            update_progress_artifact(self._artifact, percent, description=description)


def publish_leaderboard(
    rows: Sequence[Mapping[str, Any]], decisions: Mapping[tuple[str, str, str], str], report: str
) -> None:
    """Show the leaderboard as a table, and link to the report, on the current flow run."""
    table = [
        {
            "workload": row["workload"],
            "candidate": f"{row['recipe']}/{row['runtime']}",
            "size": size_text(row),
            "quality": quality_text(row),
            "latency": latency_text(row),
            "speed-up": speedup_text(row),
            "status": status_text(row, decisions.get((row["workload"], row["recipe"], row["runtime"]), "")),
        }
        for row in last_attempts(rows)
    ]
    try:
        create_table_artifact(table, key="leaderboard", description="Every candidate of the night against its baseline")
        create_link_artifact(report, link_text=report, key="report", description="The night's report, one HTML file")
    except (httpx.HTTPError, PrefectException) as error:
        # Its rows are in the store by now; the flow's own last report will say that the server is gone.
        logging.getLogger(__name__).warning("no leaderboard in Prefect's UI: %s", error)
