"""What a night is compared with: its candidates' earlier numbers, which the catalog selects (70_regressions.sql).

When a number changed, `attribute` says what changed with it: its environment, what it is made of, or nothing known.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import duckdb
import numpy as np

from storage.results import FindingMetric, Row, night_of, number
from storage.results.changepoint import Floats
from storage.results.query import rows_of

PRESENCE_DAYS = 90  # older nights do not say which candidates there were

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

_MADE = """
with rows as (from internal.history_on($night)),
incumbents as (
    select distinct workload, artifact_digest from rows where setting = 'incumbent' and night = last
)
select candidate, series, night, setting = 'primary' as is_candidate,
    (workload, artifact_digest) in (from incumbents) as is_incumbent,
    workload, machine, environment, artifact_digest, data_digest, checkpoint_digest, calibration_digest,
    recipe_digest, source_digest, ratio, ratio_sd, quality
from rows
where candidate in (select unnest($candidates)) or (workload, artifact_digest) in (from incumbents)
order by night, measured_at, run_id
"""


class Key(NamedTuple):
    """A candidate."""

    workload: str
    recipe: str
    runtime: str


@dataclass(frozen=True)
class Tonight:
    """One good measurement of the night; the hashes find those that it may be compared with."""

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
    """A number since its reference began, by night: a size, a quality, or the mean logarithm of a speed-up.

    ``sds`` are a speed-up's standard deviations; a size and a quality have the last night's interval and scale.
    """

    nights: list[dt.date]
    values: Floats
    sds: Floats | None = None
    low: float | None = None
    high: float | None = None
    scale: float | None = None


class History:
    """The history that a night (each workload's newest if None) is compared with, through an open catalog."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, night: dt.date | None) -> None:
        self._connection = connection
        self._night = night

    def tonight(self) -> list[Tonight]:
        """Return the night's good measurements, the latest last."""
        return [Tonight(Key(*row[:3]), *row[3:]) for row in self._rows(_TONIGHT)]

    def speeds(self) -> dict[int, Series]:
        """Return every speed-up by its series."""
        found = self._rows("select series, nights, ratios, sds from internal.speeds_on($night)")
        return {series: Series(nights, np.array(ratios), np.array(sds)) for series, nights, ratios, sds in found}

    def numbers(self) -> dict[tuple[int, FindingMetric, int], Series]:
        """Return every size and quality by candidate, metric and (0 for sizes) baseline with quality metric."""
        columns = "candidate, metric, quality_of, nights, values, low, high, scale"
        found = self._rows(f"select {columns} from internal.numbers_on($night)")
        return {tuple(row[:3]): Series(row[3], np.array(row[4]), None, *row[5:]) for row in found}

    def presence(self) -> dict[str, dict[dt.date, set[Key]]]:
        """Return each workload's candidates by night, failed ones included."""
        found: dict[str, dict[dt.date, set[Key]]] = {}
        for *names, nights in self._rows(_PRESENCE):
            key = Key(*names)
            for night in nights:
                found.setdefault(key.workload, {}).setdefault(night, set()).add(key)
        return found

    def made(self, candidates: Iterable[int]) -> list[Row]:
        """Return what these candidates' and the current bundles' measurements were made of, oldest first.

        ``ratio`` is the speed-up's logarithm, ``ratio_sd`` its standard deviation.
        """
        return rows_of(self._connection, _MADE, night=self._night, candidates=list(candidates))

    def _rows(self, sql: str) -> list[tuple]:  # type: ignore[type-arg]
        return self._connection.execute(sql, {"night": self._night}).fetchall()


# Starts whose likelihood is within this factor (as a logarithm) of the best one's are as good; one with a reason is
# taken before one without.
_AS_GOOD = 3.0
_NIGHT_SD = 0.015  # night-to-night standard deviation that the incumbent is credited with


@dataclass(frozen=True)
class Cause:
    """What changed on the night ``since``: ``names`` as `changes_between` has them, and ``text``, with versions."""

    since: dt.date
    names: tuple[str, ...]
    text: str


def attribute(
    made: Sequence[Row], starts: Mapping[dt.date, float], shift: float, incumbent: Sequence[Row], metric: str
) -> Cause:
    """Say what changed with a number.

    Parameters
    ----------
    made
        Rows of the candidate's measurements that were compared, oldest first, as `History.made` returns them.
    starts
        Nights on which the change may have begun, with the logarithm of each one's likelihood.
    shift
        The change: of the speed-up's logarithm, or of the quality.
    incumbent
        Measurements of the bytes that are the incumbent's, comparable with tonight's and oldest first.
    metric
        The number's column.
    """
    best = max(starts.values())
    good = sorted((night for night in starts if best - starts[night] <= _AS_GOOD), key=lambda night: -starts[night])
    changes = {}
    for night in good:
        earlier, later = [row for row in made if night_of(row) < night], [row for row in made if night_of(row) == night]
        changes[night] = changes_between(earlier, later[-1]) if later else {}
    since = next((night for night in good if changes[night]), good[0])
    found = changes[since]
    moved = None if metric == "size_bytes" else _moved(incumbent, since, shift, metric)
    around = {name: text for name, text in found.items() if name in ("machine", "environment")}
    inputs = {name: text for name, text in found.items() if name not in around}
    note = ""
    if moved is not None and not (around and not inputs):
        note = "; the incumbent's same bytes moved too" if moved else "; the incumbent's same bytes did not move"
        if around and inputs:
            found = around if moved else inputs
        elif not found:
            note += ": environment or machine" if moved else ": what was built"
    return Cause(since, tuple(found), (", ".join(found.values()) or "nothing known") + note)


def _moved(incumbent: Sequence[Row], since: dt.date, shift: float, metric: str) -> bool | None:
    column = "ratio" if metric == "speedup" else "quality"
    sds = [number(row, "ratio_sd") if metric == "speedup" else abs(shift) / 10 for row in incumbent]
    timed = [
        (night_of(row) >= since, value, sd)
        for row, sd in zip(incumbent, sds, strict=True)
        if sd is not None and (value := number(row, column)) is not None
    ]
    means, variance = [], 0.0
    for is_after in (False, True):
        side = [(value, sd) for after, value, sd in timed if after == is_after and isfinite(value)]
        if not side:
            return None
        values, sds = np.array(side).T
        weight = 1 / (sds**2 + (_NIGHT_SD**2 if metric == "speedup" else 0))
        means.append(float(np.average(values, weights=weight)))
        variance += float(1 / weight.sum())
    # Logarithm of the likelihood ratio of a change as large as the candidate's against none.
    likelihood = shift * (means[1] - means[0] - shift / 2) / variance
    return likelihood > 0 if abs(likelihood) > 1 else None


# A digest covers those of what it is made from: what follows from another is no cause of its own.
_INPUTS = ("data", "checkpoint", "calibration", "recipe", "source")
_FOLLOW = {"data": ("checkpoint", "calibration")}


def changes_between(earlier: Sequence[Row], now: Row) -> dict[str, str]:
    """Return what changed, in words, by name: machine, environment, data, checkpoint, recipe, …

    Parameters
    ----------
    earlier
        Rows with the columns of ``measurements``, oldest first; an input that one of them lacks is looked up in those
        before. Columns that they do not have are unknown.
    now
        The later row.
    """
    if not earlier:
        return {}
    last, found = earlier[-1], {}
    if last.get("machine") != now.get("machine"):
        found["machine"] = "another machine"
    if changed := _environment_changes(last.get("environment"), now.get("environment")):
        found["environment"] = f"environment: {changed}"
    found |= {name: name for name in _INPUTS if _differs(earlier, now, f"{name}_digest")}
    for name in [follower for cause in found for follower in _FOLLOW.get(cause, ())]:
        found.pop(name, None)
    if not found and _differs(earlier, now, "artifact_digest"):
        found["artifact"] = "the candidate's bytes, by an input that is not recorded"
    return found


def _differs(earlier: Sequence[Row], now: Row, column: str) -> bool:
    before = next((row[column] for row in reversed(earlier) if row.get(column) is not None), None)
    return None not in (before, now.get(column)) and before != now[column]


def _environment_changes(before: object, after: object) -> str:
    if before is None or after is None:
        return ""
    then, now = json.loads(str(before)), json.loads(str(after))
    changed = [name for name in sorted(then | now) if then.get(name) != now.get(name)]
    return ", ".join(f"{name} {then.get(name, 'not there')} → {now.get(name, 'not there')}" for name in changed)
