"""What monitoring asks of a store: when its last good night was, and the last night as numbers for Prometheus."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from flows.overview import Overview, has_results
from flows.text import age
from storage.humanize import moment
from storage.results import RunStatus
from storage.results.query import open_catalog, rows_of
from storage.root import StoreRoot

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_LAST_GOOD = "select max(finished_at) as at from runs where status = 'completed'"
# A workload's night is good if all of it was measured, whatever became of the others.
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


def last_good_night(place: str, workload: str = "") -> dt.datetime | None:
    """When the last good night of a store, or of one of its workloads, ended; None if there was none.

    A store's night is good if it completed with nothing failed; a workload's, if nothing of that workload failed.

    Raises
    ------
    StoreError
        The store cannot be read.
    """
    root = StoreRoot.of(place)
    if not has_results(root):
        return None
    with open_catalog(root) as connection:
        if workload:
            (row,) = rows_of(connection, _LAST_GOOD_OF_WORKLOAD, workload=workload)
        else:
            (row,) = rows_of(connection, _LAST_GOOD)
    at = row["at"]
    return at if isinstance(at, dt.datetime) else None


def overdue(place: str, workloads: Sequence[str], limit: dt.timedelta, now: dt.datetime) -> list[str]:
    """One line for each workload, or for the whole store if none is named, whose last good night ended too long ago."""
    lines = []
    for workload in workloads or ("",):
        at = last_good_night(place, workload)
        of = f" of {workload}" if workload else ""
        if at is None:
            lines.append(f"no good night{of} yet")
        elif now - at > limit:
            lines.append(f"no good night{of} since {moment(at)}, {age(now - at)}")
    return lines


def metrics(state: Overview, now: dt.datetime) -> CollectorRegistry:
    """The last night as Prometheus gauges, each labelled with the store; no samples where there was no night.

    Times are Unix seconds and ages seconds. The age is that at `now`: alert on the time, which goes on being true when
    nothing writes the file any more.
    """
    from prometheus_client import CollectorRegistry, Gauge

    registry = CollectorRegistry()

    def gauge(name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"nightquant_{name}", meaning, ("store", *labels), registry=registry)

    finished = gauge("last_night_finished_timestamp_seconds", "When the last night ended, whatever became of it.")
    good = gauge("last_good_night_finished_timestamp_seconds", "When the last night ended in which nothing failed.")
    old = gauge("last_night_age_seconds", "How long ago the last night had ended when this was written.")
    status = gauge("last_night_status", "1 for the last night's status, 0 for the others.", "status")
    candidates = gauge("last_night_candidates", "Candidates of the last night.", "outcome")
    alarms = gauge("alarms", "Regressions that nobody has acknowledged.")
    if (last := state.last_run) is None:
        return registry
    finished.labels(state.store).set(last.finished_at.timestamp())
    old.labels(state.store).set((now - last.finished_at).total_seconds())
    if at := last_good_night(state.store):
        good.labels(state.store).set(at.timestamp())
    for each in get_args(RunStatus):
        status.labels(state.store, each).set(last.status == each)
    counts = {"measured": last.measured, "failed": last.failed, "promoted": last.promoted}
    counts |= {"held": last.held, "rejected": last.rejected}
    for outcome, count in counts.items():
        candidates.labels(state.store, outcome).set(count)
    alarms.labels(state.store).set(last.alarms)
    return registry
