"""The baseline that a workload's last night used, for workloads whose baseline is the fastest float candidate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from storage.results import Row, night_of, number
from storage.results.query import open_catalog, rows_of
from storage.root import StoreRoot

_LAST = """
select workload, night, recipe || '/' || runtime as candidate, is_baseline, baseline_reason,
    internal.deciding(caches, cold_speedup, speedup) as speedup,
    internal.deciding(caches, cold_speedup_bound_low, speedup_bound_low) as low
from measurements
where setting = 'primary' and status = 'ok' and method = 'none' and latency_s is not null
    and workload in (select unnest($workloads))
qualify run_id = arg_max(run_id, (night, measured_at, run_id)) filter (is_baseline) over (partition by workload)
order by workload, candidate
"""


@dataclass(frozen=True)
class Baseline:
    """A workload's baseline, and the reason for it; ``replaces`` is the earlier baseline if this one is new."""

    name: str
    reason: str
    replaces: str = ""


def last_baselines(root: StoreRoot, floats: Mapping[str, Collection[str]]) -> dict[str, Baseline]:
    """Return the next baseline of each workload that has one, given the float candidates that can be deployed.

    The baseline of the last night stays until that night shows that another float candidate is decidedly faster: the
    lower bound of its speed-up, which holds simultaneously for all candidates, is above 1. A workload has no baseline
    if it was never measured, or if the last baseline is no longer one of its `floats`.
    """
    if not floats or not root.list("results"):
        return {}
    with open_catalog(root) as connection:
        rows = rows_of(connection, _LAST, workloads=list(floats))
    found = {}
    for workload, names in floats.items():
        mine = [row for row in rows if row["workload"] == workload and row["candidate"] in names]
        current = next((row for row in mine if row["is_baseline"]), None)
        if current is not None:
            found[workload] = _next(current, mine)
    return found


def _next(current: Row, rows: Collection[Row]) -> Baseline:
    name, night = str(current["candidate"]), night_of(current)
    faster = [row for row in rows if not row["is_baseline"] and (number(row, "low") or 0.0) > 1]
    if not faster:
        return Baseline(name, str(current["baseline_reason"] or f"it was the baseline on {night}"))
    best = max(faster, key=lambda row: number(row, "speedup") or 0.0)
    least = number(best, "low") or 0.0
    reason = f"on {night}, it was at least {least:.3g} times as fast as {name}, the baseline until then"
    return Baseline(str(best["candidate"]), reason, replaces=name)
