"""What a row of results is, and which values its columns of names may take; importing this costs nothing."""

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
# In which state of the caches a call is timed: as in a loop of calls, or after other work has had them.
Caches = Literal["warm", "cold"]
# What a night's comparison with earlier ones finds, and in which number.
FindingKind = Literal["slower", "larger", "worse", "vanished", "appeared", "improved"]
FindingMetric = Literal["speedup", "size_bytes", "quality_difference", "quality", "candidate"]

# The column that maps columns of its row to why they are NULL although they should have a value.
UNKNOWN = "unknown"

# Above these shares of a benchmark's time its numbers are worse than a quiet machine's: in which some task waited for a
# processor, and which other machines on the host had of the processors.
WAITED_SHARE, STOLEN_SHARE = 0.2, 0.02
# An A/A interval wider than this to either side says that the machine does not resolve small differences.
WIDEST = 0.05

# Maps may be written as pairs; a date-time is a date too.
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
    """By calls with which caches the gate decides on a measurement: rows of earlier versions know of warm ones only."""
    return "cold" if row.get("caches") == "cold" else "warm"


def deciding(row: Row, column: str) -> str:
    """The column of a measurement that the gate decides by, of a pair such as ``speedup`` and ``cold_speedup``."""
    return f"cold_{column}" if caches_of(row) == "cold" else column


def number(row: Row, column: str) -> float | None:
    """The number in a column; None where there is none."""
    value = row.get(column)
    if value is None or isinstance(value, int | float):
        return value
    raise TypeError(f"{column} is {value!r}, not a number")


def night_of(row: Row) -> dt.date:
    """The row's night."""
    night = row["night"]
    assert isinstance(night, dt.date)
    return night


def why_unknown(row: Row, *columns: str) -> str:
    """Return why one of these columns has no value although it should; "" if none is recorded as unknown."""
    reasons: object = row.get(UNKNOWN)  # a map column: as pairs, too
    found = dict(reasons) if isinstance(reasons, Mapping | list | tuple) else {}
    return next((str(found[column]) for column in columns if column in found), "")
