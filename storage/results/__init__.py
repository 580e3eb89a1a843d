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
# What a night's comparison with earlier ones finds, and in which number.
FindingKind = Literal["slower", "larger", "worse", "vanished", "appeared", "improved"]
FindingMetric = Literal["speedup", "size_bytes", "quality_difference", "quality", "candidate"]

# Maps may be written as pairs; a date-time is a date too.
Cell: TypeAlias = (
    str | int | float | dt.date | Sequence[float] | Sequence[tuple[str, float]] | Mapping[str, float] | None
)
Row: TypeAlias = Mapping[str, Cell]


def number(row: Row, column: str) -> float | None:
    """The number in a column; None where there is none."""
    value = row.get(column)
    if value is None or isinstance(value, int | float):
        return value
    raise TypeError(f"{column} is {value!r}, not a number")
