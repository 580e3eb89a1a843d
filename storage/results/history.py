"""Read earlier nights: the numbers to compare a night with, selected by ``70_regressions.sql``, and the last baselines.

If a number changed, `attribute` looks for the cause: the machine, the environment or an input.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import duckdb
import numpy as np

from storage.results import FindingMetric, Row, night_of, number
from storage.results.changepoint import Floats
from storage.results.query import open_catalog, rows_of
from storage.root import StoreRoot

PRESENCE_DAYS = 90  # number of days after which an absent candidate is forgotten

_TONIGHT = """
select workload, recipe, runtime, machine, fingerprint, candidate, series, quality_of, night, is_baseline,
    higher_is_better
from internal.history_on($night)
where night = last and setting = 'primary'
order by measured_at, run_id
"""

_PRESENCE = f"""
select workload, recipe, runtime, list(distinct rows.night)
from measurements as rows
join newest_nights($night) as newest using (workload)
where setting = 'primary' and rows.night <= newest.night and rows.night > newest.night - {PRESENCE_DAYS}
group by all
"""

_INPUT_ROWS = """
select candidate, series, night, workload, machine, environment, artifact_digest, data_digest, checkpoint_digest,
    calibration_digest, recipe_digest, source_digest
from internal.history_on($night)
where setting = 'primary' and candidate in (select unnest($candidates))
order by night, measured_at, run_id
"""

_LAST_BASELINES = """
select workload, night, recipe || '/' || runtime as candidate, is_baseline, baseline_reason,
    internal.deciding(caches, cold_speedup, speedup) as speedup,
    internal.deciding(caches, cold_speedup_bound_low, speedup_bound_low) as low
from measurements
where setting = 'primary' and status = 'ok' and method = 'none' and latency_s is not null
    and workload in (select unnest($workloads))
qualify run_id = arg_max(run_id, (night, measured_at, run_id)) filter (is_baseline) over (partition by workload)
order by workload, candidate
"""


class Key(NamedTuple):
    """The names that identify a candidate."""

    workload: str
    recipe: str
    runtime: str


@dataclass(frozen=True)
class Tonight:
    """A valid measurement from the night being compared; the hashes identify comparable measurements."""

    key: Key
    machine: str | None
    fingerprint: str | None
    candidate: int
    series: int
    quality_of: int
    night: dt.date
    is_baseline: bool | None
    higher_is_better: bool | None


@dataclass(frozen=True)
class Series:
    """A metric's values since the first reference night: sizes, qualities, or logarithms of speed-ups."""

    nights: list[dt.date]
    values: Floats
    sds: Floats | None = None  # standard deviations of the logarithms
    low: float | None = None  # ends of a quality difference's last interval
    high: float | None = None
    scale: float | None = None  # magnitude of the quality with which the difference is compared


class History:
    """Earlier results to compare with `night`, by default each workload's latest night, read from an open catalog."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, night: dt.date | None) -> None:
        self._connection = connection
        self._night = night

    def tonight(self) -> list[Tonight]:
        """Return the night's valid measurements, oldest first."""
        return [Tonight(Key(*row[:3]), *row[3:]) for row in self._rows(_TONIGHT)]

    def speeds(self) -> dict[int, Series]:
        """Return the speed-ups of each series, keyed by the series' hash."""
        rows = self._rows("select series, nights, ratios, sds from internal.speeds_on($night)")
        return {series: Series(nights, np.array(ratios), np.array(sds)) for series, nights, ratios, sds in rows}

    def numbers(self) -> dict[tuple[int, FindingMetric, int], Series]:
        """Return sizes and qualities, keyed by candidate, metric, and a hash of baseline and metric (0 for sizes)."""
        columns = "candidate, metric, quality_of, nights, values, low, high, scale"
        rows = self._rows(f"select {columns} from internal.numbers_on($night)")
        return {tuple(row[:3]): Series(row[3], np.array(row[4]), None, *row[5:]) for row in rows}

    def presence(self) -> dict[str, dict[dt.date, set[Key]]]:
        """Return each workload's candidates by night, including failed candidates."""
        candidates: dict[str, dict[dt.date, set[Key]]] = {}
        for *names, nights in self._rows(_PRESENCE):
            key = Key(*names)
            for night in nights:
                candidates.setdefault(key.workload, {}).setdefault(night, set()).add(key)
        return candidates

    def inputs(self, candidates: Iterable[int]) -> list[Row]:
        """Return the inputs of each measurement of `candidates`, oldest first."""
        return rows_of(self._connection, _INPUT_ROWS, night=self._night, candidates=list(candidates))

    def _rows(self, sql: str) -> list[tuple]:  # type: ignore[type-arg]
        return self._connection.execute(sql, {"night": self._night}).fetchall()


# Possible starts of a change count as equally good if their log likelihoods are within `_AS_GOOD` of the best log
# likelihood. Among equally good starts, a start with a known cause is preferred.
_AS_GOOD = 3.0


@dataclass(frozen=True)
class Cause:
    """The cause of a change on the night ``since``; ``names`` contains keys from `changes_between`."""

    since: dt.date
    names: tuple[str, ...]
    text: str


def attribute(rows: Sequence[Row], starts: Mapping[dt.date, float]) -> Cause:
    """Find the cause of a change in a candidate's comparable measurements (`rows`, from `History.inputs`).

    `starts` maps possible first nights of the change to log likelihoods.
    """
    best = max(starts.values())
    likely = sorted((night for night in starts if best - starts[night] <= _AS_GOOD), key=lambda night: -starts[night])
    changes = {}
    for night in likely:
        earlier, later = [row for row in rows if night_of(row) < night], [row for row in rows if night_of(row) == night]
        changes[night] = changes_between(earlier, later[-1]) if later else {}
    since = next((night for night in likely if changes[night]), likely[0])
    causes = changes[since]
    return Cause(since, tuple(causes), ", ".join(causes.values()) or "nothing known")


# A digest includes the digests of the inputs, so a changed input also changes the digests that depend on it.
_INPUTS = ("data", "checkpoint", "calibration", "recipe", "source")
_FOLLOW = {"data": ("checkpoint", "calibration")}


def changes_between(earlier: Sequence[Row], now: Row) -> dict[str, str]:
    """Return a description of each change, keyed by the changed item: machine, environment, data, checkpoint, recipe, …

    `earlier` are rows with the columns of ``measurements``, oldest first; an input that is NULL in a row is looked up
    in earlier rows.
    """
    if not earlier:
        return {}
    last, changes = earlier[-1], {}
    if last.get("machine") != now.get("machine"):
        changes["machine"] = "another machine"
    if versions := _environment_changes(last.get("environment"), now.get("environment")):
        changes["environment"] = f"environment: {versions}"
    changes |= {name: name for name in _INPUTS if _differs(earlier, now, f"{name}_digest")}
    for name in [follower for cause in changes for follower in _FOLLOW.get(cause, ())]:
        changes.pop(name, None)
    if not changes and _differs(earlier, now, "artifact_digest"):
        changes["artifact"] = "the candidate's bytes, because of an input that is not recorded"
    return changes


def _differs(earlier: Sequence[Row], now: Row, column: str) -> bool:
    before = next((row[column] for row in reversed(earlier) if row.get(column) is not None), None)
    return None not in (before, now.get(column)) and before != now[column]


def _environment_changes(before: object, after: object) -> str:
    if before is None or after is None:
        return ""
    then, now = json.loads(str(before)), json.loads(str(after))
    changed = [name for name in sorted(then | now) if then.get(name) != now.get(name)]
    return ", ".join(f"{name} {then.get(name, 'missing')} → {now.get(name, 'missing')}" for name in changed)


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
        rows = rows_of(connection, _LAST_BASELINES, workloads=list(floats))
    found = {}
    for workload, names in floats.items():
        mine = [row for row in rows if row["workload"] == workload and row["candidate"] in names]
        current = next((row for row in mine if row["is_baseline"]), None)
        if current is not None:
            found[workload] = _next_baseline(current, mine)
    return found


def _next_baseline(current: Row, rows: Collection[Row]) -> Baseline:
    name, night = str(current["candidate"]), night_of(current)
    faster = [row for row in rows if not row["is_baseline"] and (number(row, "low") or 0.0) > 1]
    if not faster:
        return Baseline(name, str(current["baseline_reason"] or f"it was the baseline on {night}"))
    best = max(faster, key=lambda row: number(row, "speedup") or 0.0)
    least = number(best, "low") or 0.0
    reason = f"on {night}, it was at least {least:.3g} times as fast as {name}, the baseline until then"
    return Baseline(str(best["candidate"]), reason, replaces=name)
