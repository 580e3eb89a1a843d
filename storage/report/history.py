"""A workload's speed-ups over the nights, and what changed on the way."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import duckdb

from storage.results import Row
from storage.results.changes import changes_between
from storage.results.query import rows_of
from storage.results.regressions import Regression

NIGHTS = 30

# Only that night's machines, and the caches that decided then: other ratios are another history.
_ROWS = """
with same as (select distinct machine, caches from trend where workload = $workload and night = $night)
select recipe || '/' || runtime as name, recipe, night, machine, environment,
    data_digest, checkpoint_digest, calibration_digest, recipe_digest,
    deciding_speedup, deciding_speedup_low, deciding_speedup_high
from trend semi join same on trend.machine = same.machine and trend.caches is not distinct from same.caches
where workload = $workload and night <= $night and deciding_speedup is not null
qualify dense_rank() over (order by night desc) <= $nights
    and row_number() over (partition by recipe, runtime, night order by measured_at desc, run_id desc) = 1
order by night, recipe, runtime
"""

_PROMOTED = """
select min(night) as night, recipe || '/' || runtime as name
from promotions
where workload = $workload and night <= $night and decision = 'promote' and bundle_version is not null
group by recipe, runtime, bundle_version
order by night
"""

_ACCEPTED = """
select night, recipe || '/' || runtime || ' ' || metric || ' accepted by ' || acknowledged_by || ': ' || reason as said
from acknowledgements
where workload = $workload and night <= $night
order by acknowledged_at, said
"""

_SAID = {
    "environment": "{text}",
    "data": "another data set",
    "checkpoint": "another checkpoint",
    "calibration": "other calibration samples",
    "recipe": "another recipe {recipe}",
}


@dataclass(frozen=True)
class Event:
    """What happened on a night, in words; ``promoted`` names the candidates whose new bundles were handed over.

    ``accepted`` are that night's findings that somebody acknowledged since, with who and why.
    """

    night: dt.date
    changes: tuple[str, ...] = ()
    promoted: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()


@dataclass(frozen=True)
class History:
    """Rows by candidate, the oldest first, and the events of the same nights."""

    rows: dict[str, list[Row]]
    events: tuple[Event, ...]

    @property
    def nights(self) -> list[dt.date]:
        """The nights, the oldest first."""
        return sorted({night for rows in self.rows.values() for row in rows for night in _dates(row)})


def history_of(
    connection: duckdb.DuckDBPyConnection, workload: str, night: dt.date, findings: Iterable[Regression]
) -> History:
    """The last nights of a workload on a night's machines."""
    rows: dict[str, list[Row]] = {}
    for row in rows_of(connection, _ROWS, workload=workload, night=night, nights=NIGHTS):
        rows.setdefault(str(row["name"]), []).append(row)
    history = History(rows, ())
    changes: dict[dt.date, list[str]] = {}
    for mine in rows.values():
        for before, after in pairwise(mine):
            for date in _dates(after):
                changes.setdefault(date, []).extend(_changes(before, after))
    promoted: dict[dt.date, list[str]] = {}
    for row in rows_of(connection, _PROMOTED, workload=workload, night=night):
        for date in _dates(row):
            promoted.setdefault(date, []).append(str(row["name"]))
    alarms: dict[dt.date, list[str]] = {}
    for found in findings:
        if found.is_bad and found.since is not None:
            alarms.setdefault(found.since, []).append(f"{found.recipe}/{found.runtime} {found.kind}")
    accepted: dict[dt.date, list[str]] = {}
    for row in rows_of(connection, _ACCEPTED, workload=workload, night=night):
        for date in _dates(row):
            accepted.setdefault(date, []).append(str(row["said"]))
    events = (
        Event(each, *(tuple(dict.fromkeys(kind.get(each, ()))) for kind in (changes, promoted, alarms, accepted)))
        for each in history.nights
    )
    return History(rows, tuple(event for event in events if event != Event(event.night)))


def _changes(before: Row, after: Row) -> Iterator[str]:
    """Say what a candidate's later measurement was made of or in that its earlier one was not."""
    for name, text in changes_between([before], after).items():
        if said := _SAID.get(name, ""):
            yield said.format(text=text.removeprefix("environment: "), **after)


def shown_of(history: History, wanted: Sequence[str], most: int = 8) -> list[str]:
    """The candidates with a history, in the order `wanted`: more than `most` lines cannot be told apart."""
    return [name for name in wanted if len(history.rows.get(name, ())) > 1][:most]


def _dates(row: Row) -> Iterator[dt.date]:
    if isinstance(night := row["night"], dt.date):
        yield night
