"""Define types for result rows and their values, without importing large packages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

Profile = Literal["quick", "standard", "full"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
RunStatus = Literal["completed", "failed", "cancelled"]
Status = Literal["ok", "failed", "skipped"]
Setting = Literal["primary", "a/a", "current"]
Verdict = Literal["valid", "inconclusive", "not-measured"]
Decision = Literal["promote", "pass", "hold", "reject"]
# Whether the caches are warm or cold when a timed call begins. Before each cold call, the model is evicted from the
# caches.
Caches = Literal["warm", "cold"]
# In the offline scenario, all processors are busy; in the server scenario, requests arrive at random times.
Scenario = Literal["offline", "server"]
# Kinds of findings, and the metrics that are compared across nights.
FindingKind = Literal["slower", "larger", "worse", "vanished", "appeared", "improved"]
FindingMetric = Literal["speedup", "size_bytes", "quality_difference", "quality", "candidate"]
# Source and outcome of a search trial, and the unit of the allowed quality loss.
TrialOrigin = Literal["written", "space", "variant", "kept-float"]
TrialOutcome = Literal["chosen", "passing", "failed", "dropped", "open"]
QualityUnit = Literal["absolute", "relative"]

# Name of the column that explains why values in a row are unknown.
UNKNOWN = "unknown"

# A benchmark is less reliable if `WAITED_SHARE` or `STOLEN_SHARE` is exceeded. `WAITED_SHARE` is the largest fraction
# of time in which tasks may wait for a CPU. `STOLEN_SHARE` is the largest fraction of CPU time that other virtual
# machines may take.
WAITED_SHARE, STOLEN_SHARE = 0.2, 0.02
# If an A/A interval is not within 1 ± `WIDEST`, the host is too noisy to detect small differences.
WIDEST = 0.05

# A cell may contain a mapping as a sequence of (key, value) pairs. ``dt.date`` includes ``dt.datetime``.
Cell: TypeAlias = (
    str
    | int
    | float
    | dt.date
    | Sequence[float | None]
    | Sequence[tuple[str, float | str]]
    | Mapping[str, float | str]
    | None
)
Row: TypeAlias = Mapping[str, Cell]


def candidate_of(row: Row) -> str:
    """Return the name of a row's candidate, ``recipe/runtime``; only the recipe or ``""`` if the row names no more."""
    return "/".join(str(row[column]) for column in ("recipe", "runtime") if row.get(column))


def caches_of(row: Row) -> Caches:
    """Return ``"cold"`` if the gate uses cold calls, else ``"warm"``."""
    return "cold" if row.get("caches") == "cold" else "warm"


def deciding(row: Row, column: str) -> str:
    """Return `column`, or the column's variant for cold calls if the gate uses cold calls."""
    return f"cold_{column}" if caches_of(row) == "cold" else column


def number(row: Row, column: str) -> float | None:
    """Return the number in a column, or None if the number is missing."""
    value = row.get(column)
    if value is None or isinstance(value, int | float):
        return value
    raise TypeError(f"the column {column} contains {value!r}, which is not a number")


def night_of(row: Row) -> dt.date:
    """Return the night of a row."""
    night = row["night"]
    assert isinstance(night, dt.date)
    return night


def why_unknown(row: Row, *columns: str) -> str:
    """Return the reason why one of `columns` is unknown, or ``""`` if the row does not record a reason."""
    reasons: object = row.get(UNKNOWN)  # a mapping or (key, value) pairs
    known = dict(reasons) if isinstance(reasons, Mapping | list | tuple) else {}
    return next((str(known[column]) for column in columns if column in known), "")
