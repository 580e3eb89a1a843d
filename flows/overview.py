"""State of a store: last night, last good night, current bundles, and problems that need attention."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
from pydantic import TypeAdapter

from flows.console import age
from storage.bundles import BundleStore
from storage.humanize import moment, plural
from storage.results import Row, number
from storage.results.catalog import CATALOG
from storage.results.query import open_catalog, rows_of
from storage.root import StoreRoot
from tasks.gate import hands_over

if TYPE_CHECKING:
    from storage.results.regressions import Regression

# nightquant expects runs to start at the same time every day and to take at most an hour.
_OVERDUE = dt.timedelta(hours=25)

_LAST_RUN = """
with last as (from runs order by night desc, started_at desc limit 1),
decided as (from outcomes_of((select [run_id] from last)) where setting = 'primary')
select run_id, night, started_at, finished_at, status, profile, message, candidates_ok as measured,
    candidates_failed as failed,
    (select count(*) from decided where became = 'promote') as promoted,
    (select count(distinct workload) from decided where incumbent_stays) as kept,
    (select count(*) from decided where decision = 'hold') as held,
    (select count(*) from decided where decision = 'reject') as rejected
from last
"""

_FAILURES = """
select workload, stage, split_part(error, chr(10), 1) as error, string_agg(distinct recipe || '/' || runtime, ', '
    order by recipe || '/' || runtime) as candidates
from failures
where run_id = $run and setting <> 'incumbent'
group by all
order by workload, candidates
"""

_RIVALS = """
from outcomes where setting = 'primary' and decision in ('promote', 'hold')
order by workload, goodness desc nulls last, recipe, runtime
"""

_WARNED = "from nights where run_id = $run and warning is not null order by workload"

# For a store, a night is good if the run completed without a failure. A night is good for a workload if none of the
# workload's candidates failed.
_LAST_GOOD = "select max(finished_at) as at from runs where status = 'completed'"
_LAST_GOOD_OF_WORKLOAD = """
select max(finished_at) as at
from runs
join (
    select run_id
    from measurements
    where workload = $workload and setting <> 'incumbent'
    group by run_id
    having count(*) filter (status = 'ok') > 0 and count(*) filter (status = 'failed') = 0
) using (run_id)
where status <> 'cancelled'
"""


@dataclass(frozen=True)
class Current:
    """A workload's current bundle, and the switch that made it current."""

    workload: str
    version: str
    since: dt.datetime
    action: str
    by: str
    reason: str


@dataclass(frozen=True)
class Concern:
    """A problem that needs attention, and the command to run next (without the ``--store`` option)."""

    kind: str
    text: str
    command: str


@dataclass(frozen=True)
class Overview:
    """State of a store, shown by ``nightquant status``; ``last_run`` is None if there are no results yet."""

    store: str
    exists: bool
    last_run: Row | None
    current: tuple[Current, ...]
    concerns: tuple[Concern, ...]


def overview(place: str, now: dt.datetime) -> Overview:
    """Read the state of a store without writing anything."""
    root = StoreRoot.of(place)
    current = tuple(_current(BundleStore(root)))
    concerns: list[Concern] = []
    last_run = None
    filled = has_results(root)
    if filled:
        with open_catalog(root) as connection:
            regressions = _regressions(connection)
            if runs := rows_of(connection, _LAST_RUN):
                last_run = {**runs[0], "alarms": len(regressions)}
                concerns += _troubles(connection, last_run, now)
            concerns += [Concern("regression", item.describe(), 'query "FROM regressions"') for item in regressions]
            concerns += _held_winners(rows_of(connection, _RIVALS))
    exists = filled or bool(current) or (root.local is not None and root.local.is_dir())
    return Overview(root.url, exists, last_run, current, tuple(concerns))


def has_results(root: StoreRoot) -> bool:
    """Return whether the store contains any results."""
    return root.exists(CATALOG) or bool(root.list("results"))


def last_good_night(place: str, workload: str = "") -> dt.datetime | None:
    """Return the time at which the last good night of a store or workload ended, or None if no night was good."""
    root = StoreRoot.of(place)
    if not has_results(root):
        return None
    with open_catalog(root) as connection:
        parameters = {"workload": workload} if workload else {}
        (row,) = rows_of(connection, _LAST_GOOD_OF_WORKLOAD if workload else _LAST_GOOD, **parameters)
    at = row["at"]
    return at if isinstance(at, dt.datetime) else None


def overdue(place: str, workloads: Sequence[str], limit: dt.timedelta, now: dt.datetime) -> list[str]:
    """Return a line for each workload that has not had a good night within `limit`."""
    lines = []
    for workload in workloads or ("",):
        at = last_good_night(place, workload)
        scope = f" of {workload}" if workload else ""
        if at is None:
            lines.append(f"no good night{scope} yet")
        elif now - at > limit:
            lines.append(f"no good night{scope} since {moment(at)}, {age(now - at)}")
    return lines


def _current(bundles: BundleStore) -> Iterator[Current]:
    for workload in bundles.workloads():
        if pointer := bundles.pointer(workload):
            switch = pointer.history[-1]
            yield Current(workload, pointer.version, switch.at, switch.action, switch.by, switch.reason)


def _regressions(connection: duckdb.DuckDBPyConnection) -> list[Regression]:
    rows = rows_of(connection, "from regressions")
    if not rows:
        return []
    # Import late, because SciPy loads slowly and is needed only for nights with regressions.
    from storage.results.regressions import Regression

    regressions = TypeAdapter(list[Regression]).validate_python(rows)
    return [regression for regression in regressions if regression.is_bad]


def _troubles(connection: duckdb.DuckDBPyConnection, last: Row, now: dt.datetime) -> Iterator[Concern]:
    finished_at = last["finished_at"]
    assert isinstance(finished_at, dt.datetime)
    if now - finished_at > _OVERDUE:
        since = f"{moment(finished_at)}, {age(now - finished_at)}"
        yield Concern("overdue", f"no night since {since}", "nightly")
    failures = rows_of(connection, _FAILURES, run=last["run_id"])
    for row in failures:
        text = f"{row['workload']}: {row['candidates']} failed in {row['stage']}: {row['error']}"
        yield Concern("failure", text, 'query "FROM failures"')
    for row in rows_of(connection, _WARNED, run=last["run_id"]):
        text = f"{row['workload']}: {row['why']}. {row['warning']}"
        yield Concern("incumbent", text, f"show {row['workload']}")
    if last["status"] != "completed" and not failures:
        yield Concern("failure", f"the last run was {last['status']}: {last['message']}", "nightly")


def _held_winners(decisions: Sequence[Row]) -> Iterator[Concern]:
    """Yield a warning for each workload whose best candidate has the decision ``hold``."""
    best = {row["workload"]: row for row in reversed(decisions) if hands_over(str(row["runtime"]))}
    for workload, row in sorted(best.items(), key=lambda item: str(item[0])):
        if row["decision"] == "hold" and number(row, "goodness") is not None:
            text = f"{workload}: {row['candidate']} would win but is held: {row['why']}"
            yield Concern("held", text, f"show {workload}")


def summary(last: Row) -> str:
    """Summarize the last run's decisions in one line."""
    parts = [f"{last[name]} {name}" for name in ("promoted", "kept", "held", "failed")]
    return ", ".join([*parts, plural(int(number(last, "alarms") or 0), "alert")])
