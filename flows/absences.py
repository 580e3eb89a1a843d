"""What a night should have had and has not: nights that did not run, workloads that are gone."""

from __future__ import annotations

from datetime import date, timedelta

from storage.results.query import run_query
from storage.root import StoreRoot


def absences(store: StoreRoot | str, night: date) -> list[str]:
    """What is missing on a night, or between it and the run before, one line for each.

    A night counts as missed where the two runs before the gap were on consecutive nights: a store that is used now and
    then has no rhythm to break. A workload counts as gone where it was measured on the night before, not on this one.
    """
    before = [
        row["night"]
        for row in run_query(
            store,
            "select distinct night from runs where status <> 'cancelled' "
            f"and night < date '{night.isoformat()}' order by night desc limit 2",
        ).to_pylist()
    ]
    if not before:
        return []
    lines = [f"{name} was measured on {before[0]}, but not tonight" for name in _gone(store, night, before[0])]
    missed = (night - before[0]).days - 1
    nightly = len(before) == 2 and before[0] - before[1] == timedelta(days=1)
    if nightly and missed > 0:
        first, last = before[0] + timedelta(days=1), night - timedelta(days=1)
        lines.append(f"no run on {first}" if missed == 1 else f"no run on {missed} nights, {first} to {last}")
    return lines


def _gone(store: StoreRoot | str, night: date, before: date) -> list[str]:
    rows = run_query(
        store,
        f"select distinct workload from measurements where night = date '{before.isoformat()}' except "
        f"select workload from measurements where night = date '{night.isoformat()}' order by workload",
    ).to_pylist()
    return [row["workload"] for row in rows]
