"""What a night is compared with: its candidates' earlier numbers, which the catalog selects (70_regressions.sql)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import duckdb
import numpy as np

from storage.results import FindingMetric, Row
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
class Speeds:
    """A speed-up since its reference began, by night: mean logarithms and their standard deviations."""

    nights: list[dt.date]
    ratios: Floats
    sds: Floats


@dataclass(frozen=True)
class Numbers:
    """A size or a quality since its reference began, by night; the interval and the scale are the last night's."""

    nights: list[dt.date]
    values: Floats
    low: float | None
    high: float | None
    scale: float | None


class History:
    """The history that a night (each workload's newest if None) is compared with, through an open catalog."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, night: dt.date | None) -> None:
        self._connection = connection
        self._night = night

    def tonight(self) -> list[Tonight]:
        """Return the night's good measurements, the latest last."""
        return [Tonight(Key(*row[:3]), *row[3:]) for row in self._rows(_TONIGHT)]

    def speeds(self) -> dict[int, Speeds]:
        """Return every speed-up by its series."""
        found = self._rows("select series, nights, ratios, sds from internal.speeds_on($night)")
        return {series: Speeds(nights, np.array(ratios), np.array(sds)) for series, nights, ratios, sds in found}

    def numbers(self) -> dict[tuple[int, FindingMetric, int], Numbers]:
        """Return every size and quality by candidate, metric and (0 for sizes) baseline with quality metric."""
        columns = "candidate, metric, quality_of, nights, values, low, high, scale"
        found = self._rows(f"select {columns} from internal.numbers_on($night)")
        return {tuple(row[:3]): Numbers(row[3], np.array(row[4]), *row[5:]) for row in found}

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
