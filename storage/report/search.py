"""Collect the data for a workload's search on one night: the trials, the successive improvements and a summary."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import duckdb

from storage.humanize import minutes, plural, quality_unit, ratio, size
from storage.report.night import Mark
from storage.results import Row, number
from storage.results.query import rows_of

# Only chosen trials have filled marks; the marks of the other four outcomes differ in shape and colour.
LOOKS = {
    "chosen": Mark("#0072B2", "o"),
    "passing": Mark("#0072B2", "o", is_hollow=True),
    "failed": Mark("#D55E00", "s", is_hollow=True),
    "dropped": Mark("#5a5a5a", "D", is_hollow=True),
    "open": Mark("#000000", "v", is_hollow=True),
}

_TRIALS = """
select trials.*, recipe || '/' || runtime as name
from trials semi join searches using (workload, night, run_id)
where night = $night
order by workload, trial
"""


@dataclass(frozen=True)
class Search:
    """A workload's search; ``trials`` are rows of the ``trials`` table in search order, with ``name`` added.

    ``metric`` is the quality metric.
    """

    trials: tuple[Row, ...]
    metric: str = "quality"

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of trials by outcome; outcomes without trials are omitted."""
        counts = Counter(str(row["outcome"]) for row in self.trials)
        return {outcome: counts[outcome] for outcome in LOOKS if counts[outcome]}

    @property
    def ranks_by(self) -> Literal["size_bytes", "speedup"]:
        """Name of the column by which passing trials are ranked."""
        return "size_bytes" if any(row["objective"] == "smallest" for row in self.trials) else "speedup"

    @property
    def unit(self) -> str:
        """Unit to print after a quality drop, or ``""`` if the metric does not have a unit."""
        return "%" if self._scale > 1 else quality_unit(self.metric)

    @property
    def bound(self) -> float | None:
        """Largest quality drop that passes, in the unit of `drop`."""
        bounds = (bound for row in self.trials if (bound := number(row, "quality_bound")) is not None)
        return next((bound * self._scale for bound in bounds), None)

    @property
    def path(self) -> tuple[Row, ...]:
        """Passing trials that were better than all earlier passing trials, in the order of the search."""
        sign, best, steps = -1 if self.ranks_by == "size_bytes" else 1, -math.inf, []
        for row in self.trials:
            value = number(row, self.ranks_by)
            if row["outcome"] in ("chosen", "passing") and value is not None and sign * value > best:
                best = sign * value
                steps.append(row)
        return tuple(steps)

    @property
    def summary(self) -> str:
        """One sentence about the number of trials and the duration of the search."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items())
        known = sum(row["is_known"] is True for row in self.trials)
        samples = max(number(row, "samples") or 0 for row in self.trials)
        spent = minutes(sum(number(row, "cost_s") or 0 for row in self.trials))
        earlier = f" ({known} measured by an earlier run)" if known else ""
        data = f" on up to {samples:,} samples of the {self.trials[0]['split']} split" if samples else ""
        return f"In {spent}, the search considered {plural(len(self.trials), 'trial')}{earlier}{data}: {counts}."

    @property
    def description(self) -> str:
        """Text alternative to the plot: the quality bound and the trials in `path`."""
        format_ = size if self.ranks_by == "size_bytes" else ratio
        steps = [f"{at}. {row['name']}, {format_(number(row, self.ranks_by))}" for at, row in enumerate(self.path, 1)]
        path = f"Best trials so far, in order: {'; '.join(steps)}." if steps else "No trial passes."
        bound = (
            ""
            if self.bound is None
            else f" A trial passes if its quality drops by at most {self.bound:.3g}{self.unit}."
        )
        return f"{plural(len(self.trials), 'trial')}.{bound} {path} The table below lists every trial."

    def drop(self, row: Row) -> tuple[float, float, float] | None:
        """Return a trial's quality drop and the bounds of its 95% interval, or None if the drop was not measured."""
        value, *ends = (number(row, f"quality_drop{end}") for end in ("", "_low", "_high"))
        if value is None:
            return None
        low, high = (self._scale * (value if end is None else end) for end in ends)
        return self._scale * value, low, high

    @property
    def _scale(self) -> float:
        return 100.0 if any(row["quality_unit"] == "relative" for row in self.trials) else 1.0


def searches_of(connection: duckdb.DuckDBPyConnection, night: dt.date) -> dict[str, tuple[Row, ...]]:
    """Return the trials of a night's searches, keyed by workload."""
    rows = rows_of(connection, _TRIALS, night=night)
    return {name: tuple(trials) for name, trials in groupby(rows, lambda row: str(row["workload"]))}
