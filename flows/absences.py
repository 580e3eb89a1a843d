"""What a night should have had and has not: nights that did not run, workloads that are gone."""

from __future__ import annotations

from datetime import date, timedelta

from storage.results.query import run_query
from storage.root import StoreRoot


def missed_nights(store: StoreRoot | str, night: date) -> list[str]:
    """One line where nights are missing between a night and the run before it.

    A night counts as missed where the two runs before the gap were on consecutive nights: a store that is used now and
    then has no rhythm to break.
    """
    before = _nights_before(store, night)
    if len(before) < 2 or before[0] - before[1] != timedelta(days=1):
        return []
    missed = (night - before[0]).days - 1
    first, last = before[0] + timedelta(days=1), night - timedelta(days=1)
    if missed < 1:
        return []
    return [f"no run on {first}" if missed == 1 else f"no run on {missed} nights, {first} to {last}"]


def gone_workloads(store: StoreRoot | str, night: date) -> list[str]:
    """One line for each workload that was measured on the night before, but not on this one."""
    before = _nights_before(store, night)
    if not before:
        return []
    rows = run_query(
        store,
        f"select distinct workload from measurements where night = date '{before[0].isoformat()}' except "
        f"select workload from measurements where night = date '{night.isoformat()}' order by workload",
    ).to_pylist()
    return [f"{row['workload']} was measured on {before[0]}, but not tonight" for row in rows]


def _nights_before(store: StoreRoot | str, night: date) -> list[date]:
    """The last two nights before one, the later one first."""
    rows = run_query(
        store,
        "select distinct night from runs where status <> 'cancelled' "
        f"and night < date '{night.isoformat()}' order by night desc limit 2",
    ).to_pylist()
    return [row["night"] for row in rows]
