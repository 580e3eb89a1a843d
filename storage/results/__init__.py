"""Define types for result rows and for names in result columns; this module does not import large packages."""

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
# State of the caches during a timed call: warm in a loop of calls, or cold after other data has filled the caches.
Caches = Literal["warm", "cold"]
# Load under which capacity is measured: all processors busy, or requests at random times with a latency bound.
Scenario = Literal["offline", "server"]
# Kinds of findings from a comparison with earlier nights, and the metrics that are compared.
FindingKind = Literal["slower", "larger", "worse", "vanished", "appeared", "improved"]
FindingMetric = Literal["speedup", "size_bytes", "quality_difference", "quality", "candidate"]
# Sources of a search's trials, outcomes of trials, and units in which a bound limits the loss of quality.
TrialOrigin = Literal["written", "space", "variant", "kept-float"]
TrialOutcome = Literal["chosen", "passing", "failed", "dropped", "open"]
QualityUnit = Literal["absolute", "relative"]

# Name of the column that gives the reason for each unknown value of a row.
UNKNOWN = "unknown"

# If these fractions of a benchmark's time are exceeded, the numbers are less reliable than on a quiet host.
# `WAITED_SHARE` applies to the time in which a task waited for a CPU, and `STOLEN_SHARE` to the time that other virtual
# machines took.
WAITED_SHARE, STOLEN_SHARE = 0.2, 0.02
# If an A/A interval extends further than `WIDEST` from 1, the host is too noisy to show small differences.
WIDEST = 0.05

# A mapping may be a sequence of (key, value) pairs. ``dt.date`` includes ``dt.datetime``.
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
    """Return whether the gate uses warm or cold calls; rows from earlier versions contain only warm calls."""
    return "cold" if row.get("caches") == "cold" else "warm"


def deciding(row: Row, column: str) -> str:
    """Return `column`, or its variant for cold calls if the gate uses cold calls."""
    return f"cold_{column}" if caches_of(row) == "cold" else column


def number(row: Row, column: str) -> float | None:
    """Return the number in a column, or None if it is missing."""
    value = row.get(column)
    if value is None or isinstance(value, int | float):
        return value
    raise TypeError(f"{column} is {value!r}, not a number")


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
