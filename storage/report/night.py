"""Collect a night's report: candidates, marks, outcomes and earlier nights."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import duckdb

from storage.results import Row, candidate_of, night_of
from storage.results.history import changes_between
from storage.results.query import rows_of
from storage.results.regressions import Regression

# Okabe and Ito's palette for colour-blind readers, without yellow, which is too pale on a white background. Marks also
# differ in shape, so that colour is never the only distinction.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
# SVG outlines of matplotlib's markers, in a 16 × 16 square.
_MARKERS = {
    "o": "M8 2a6 6 0 1 0 .01 0z",
    "s": "M3 3h10v10H3z",
    "^": "M8 2l6.5 12h-13z",
    "D": "M8 1l7 7-7 7-7-7z",
    "v": "M8 14l6.5-12h-13z",
    "P": "M6 2h4v4h4v4h-4v4H6v-4H2V6h4z",
    "X": "M2 5l3-3 3 3 3-3 3 3-3 3 3 3-3 3-3-3-3 3-3-3 3-3z",
}


@dataclass(frozen=True)
class Mark:
    """A CSS colour and a matplotlib marker."""

    colour: str
    marker: str

    @property
    def svg(self) -> str:
        """The mark as inline SVG, which screen readers skip."""
        path = f'<path fill="{self.colour}" d="{_MARKERS[self.marker]}"/>'
        return f'<svg class="mark" viewBox="0 0 16 16" aria-hidden="true">{path}</svg>'


def marks_of(candidates: Iterable[str]) -> dict[str, Mark]:
    """Map each candidate's name to a mark; there are 49 different marks."""
    markers, count = list(_MARKERS), len(_COLOURS)
    return {
        name: Mark(_COLOURS[index % count], markers[(index + index // count) % count])
        for index, name in enumerate(sorted(set(candidates)))
    }


_CANDIDATES = """
select *, if(setting = 'current', 'current bundle ', '') || candidate as name,
    internal.instructions_in_words(instructions) as ran_by, internal.dearest_float(float_operators) as dearest_float,
    internal.lines_of(doubts) as doubted
from outcomes_on($night)
order by workload, setting = 'current' desc, rank
"""

_OUTCOMES = """
select *, (
    select arg_min(recipe || '/' || runtime, promotions.night) from promotions
    where promotions.workload = came.workload and bundle_version = replaced
) as replaced_candidate
from nights_on($night) as came
"""


def candidates_of(connection: duckdb.DuckDBPyConnection, night: dt.date) -> dict[str, list[Row]]:
    """Return a night's ``outcomes`` by workload: the current bundle, followed by the candidates in order of rank."""
    candidates: dict[str, list[Row]] = {}
    for row in rows_of(connection, _CANDIDATES, night=night):
        candidates.setdefault(str(row["workload"]), []).append(row)
    return candidates


def outcomes_of(connection: duckdb.DuckDBPyConnection, night: dt.date) -> dict[str, Row]:
    """Return a night's row of the ``nights`` view for each workload, and add the replaced bundle's candidate."""
    return {str(row["workload"]): row for row in rows_of(connection, _OUTCOMES, night=night)}


NIGHTS = 30

# Omit speed-ups from other machines or cache states, because they are not comparable with the night's speed-ups.
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

_CAUSES = {
    "environment": "{text}",
    "data": "another data set",
    "checkpoint": "another checkpoint",
    "calibration": "other calibration samples",
    "recipe": "another recipe {recipe}",
}


@dataclass(frozen=True)
class Event:
    """A night's events as text."""

    night: dt.date
    changes: tuple[str, ...] = ()
    promoted: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True)
class History:
    """Each candidate's rows, oldest first, and the events of each night."""

    rows: dict[str, list[Row]]
    events: tuple[Event, ...]

    @property
    def nights(self) -> list[dt.date]:
        """All nights that have rows, oldest first."""
        return sorted({night_of(row) for rows in self.rows.values() for row in rows})


def history_of(
    connection: duckdb.DuckDBPyConnection, workload: str, night: dt.date, findings: Iterable[Regression]
) -> History:
    """Return a workload's history up to `night`, limited to the machines that were used on `night`."""
    rows: dict[str, list[Row]] = {}
    for row in rows_of(connection, _ROWS, workload=workload, night=night, nights=NIGHTS):
        rows.setdefault(str(row["name"]), []).append(row)
    history = History(rows, ())
    changes, promoted, alarms = (defaultdict[dt.date, list[str]](list) for _ in range(3))
    for candidate_rows in rows.values():
        for before, after in pairwise(candidate_rows):
            for cause, text in changes_between([before], after).items():
                if template := _CAUSES.get(cause, ""):
                    changes[night_of(after)].append(template.format(text=text.removeprefix("environment: "), **after))
    for row in rows_of(connection, _PROMOTED, workload=workload, night=night):
        promoted[night_of(row)].append(str(row["name"]))
    for finding in findings:
        if finding.is_bad and finding.since is not None:
            alarms[finding.since].append(f"{candidate_of(vars(finding))} {finding.kind}")
    events = []
    for date in history.nights:
        of_night = [tuple(dict.fromkeys(kind[date])) for kind in (changes, promoted, alarms)]
        if any(of_night):
            events.append(Event(date, *of_night))
    return History(rows, tuple(events))


def shown_of(history: History, names: Sequence[str], most: int = 8) -> list[str]:
    """Return the first `most` candidates measured on two or more nights, so that plotted lines stay distinguishable."""
    return [name for name in names if len(history.rows.get(name, ())) > 1][:most]
