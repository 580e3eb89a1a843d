"""Types of result rows and of the names in their columns; this module imports nothing heavy."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

Profile = Literal["quick", "standard", "full"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
RunStatus = Literal["completed", "failed", "cancelled"]
Status = Literal["ok", "failed", "skipped"]
Setting = Literal["primary", "throughput", "a/a", "incumbent"]
Verdict = Literal["valid", "inconclusive", "not-measured"]
Decision = Literal["promote", "pass", "hold", "reject"]
# State of the caches when a call is timed: warm in a loop of calls, or cold after other work has used them.
Caches = Literal["warm", "cold"]
# Kinds of findings in a comparison with earlier nights, and the numbers that are compared.
FindingKind = Literal["slower", "larger", "worse", "vanished", "appeared", "improved"]
FindingMetric = Literal["speedup", "size_bytes", "quality_difference", "quality", "candidate"]

# The column that maps other columns of its row to the reason why their values are unknown.
UNKNOWN = "unknown"

# Above these shares of a benchmark's time, its numbers are worse than on a quiet machine: time in which a task waited
# for a processor, and processor time that other virtual machines took.
WAITED_SHARE, STOLEN_SHARE = 0.2, 0.02
# If an A/A interval reaches further than this to either side, the machine is too noisy for small differences.
WIDEST = 0.05

# Maps may be given as pairs, and a datetime is a date too.
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


def caches_of(row: Row) -> Caches:
    """Return the state of the caches by which the gate decides; rows of earlier versions have only warm calls."""
    return "cold" if row.get("caches") == "cold" else "warm"


def deciding(row: Row, column: str) -> str:
    """Return which column of a pair such as ``speedup`` and ``cold_speedup`` the gate decides by."""
    return f"cold_{column}" if caches_of(row) == "cold" else column


def number(row: Row, column: str) -> float | None:
    """Return the number in a column, or None if it has none."""
    value = row.get(column)
    if value is None or isinstance(value, int | float):
        return value
    raise TypeError(f"{column} is {value!r}, not a number")


def night_of(row: Row) -> dt.date:
    """Return the row's night."""
    night = row["night"]
    assert isinstance(night, dt.date)
    return night


def why_unknown(row: Row, *columns: str) -> str:
    """Return the reason why one of these columns is unknown; "" if none is recorded as unknown."""
    reasons: object = row.get(UNKNOWN)  # a map, or pairs
    known = dict(reasons) if isinstance(reasons, Mapping | list | tuple) else {}
    return next((str(known[column]) for column in columns if column in known), "")
