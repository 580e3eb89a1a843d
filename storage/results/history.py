"""What a night is compared with: its candidates' earlier numbers since their references began, read from the catalog.

A reference begins anew on the night on which a new bundle of the candidate was promoted, and where a finding was
acknowledged. The night of a promotion itself is still compared with what was before.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import duckdb
import numpy as np
from numpy.typing import NDArray

from storage.results import FindingMetric
from storage.results.changepoint import Floats

HISTORY_DAYS = 365  # older nights are no history
PRESENCE_DAYS = 90  # nor of who was there

# Student's quantile at the launches of a row is what makes the intervals of few launches so wide, not their scatter. It
# counts as after five launches, the number that the alarms are tuned with (benchmarks.regressions).
_NARROWED = " ".join(f"when {launches} then {2.776 / t:.3f}" for launches, t in ((2, 12.706), (3, 4.303), (4, 3.182)))

# The asked workloads' rows. Those of earlier versions name no machine: that of later rows with their fingerprint is
# theirs, or else the fingerprint stands for it. Hashes stand for names, which are slow to hand over by the thousand.
_ROWS = f"""
with tonight as materialized (
    from newest_nights({{night}})
),
known as materialized (
    select fingerprint, any_value(machine) as machine from measurements where machine is not null group by fingerprint
),
rows as not materialized (
    select every.* exclude (machine), coalesce(every.machine, known.machine, every.fingerprint) as machine,
        tonight.night as last,
        hash(workload, recipe, runtime) as candidate,
        hash(workload, recipe, runtime, coalesce(every.machine, known.machine, every.fingerprint), profile, baseline,
            threads, batch_size, coalesce(caches, 'warm')) as series,
        hash(baseline, quality_metric) as quality_of,
        ln(if(caches = 'cold', cold_speedup, speedup)) as ratio,
        if(caches = 'cold', ln(cold_speedup_high / cold_speedup_low), ln(speedup_high / speedup_low))
            * case launches {_NARROWED} else 1 end as ratio_width,
        greatest(coalesce(ratio_width, 0.2) / (2 * 1.96), 0.001) as ratio_sd
    from measurements as every
    join tonight using (workload)
    left join known using (fingerprint)
    where every.night <= tonight.night and every.night > tonight.night - {HISTORY_DAYS}
)
"""

_TONIGHT = f"""{_ROWS}
select workload, recipe, runtime, machine, fingerprint, candidate, series, quality_of, night, is_baseline,
    higher_is_better
from rows
where night = last and setting = 'primary' and status = 'ok'
order by measured_at, run_id, attempt
"""

_NUMBERS = f"""{_ROWS}
select candidate, series, quality_of, night, epoch(measured_at) + attempt / 100 as at, ratio, ratio_sd,
    size_bytes::double as size_bytes, quality, quality_difference, quality_difference_low, quality_difference_high,
    abs(coalesce(nullif(baseline_quality, 0), quality)) as quality_scale
from rows
where setting = 'primary' and status = 'ok'
"""

_RESETS = """
with tonight as materialized (
    from newest_nights({night})
)
select workload, recipe, runtime, metric, max(resets.night)
from (
    select workload, recipe, runtime, null as metric, min(promotions.night) as night, 1 as holds_after
    from promotions
    where decision = 'promote' and bundle_version is not null
    group by workload, recipe, runtime, bundle_version
    union all
    select workload, recipe, runtime, metric, night, 0
    from acknowledgements
) as resets
join tonight as asked using (workload)
where resets.night + holds_after <= asked.night
group by all
"""

_PRESENCE = f"""
with tonight as materialized (
    from newest_nights({{night}})
)
select workload, recipe, runtime, list(distinct rows.night)
from measurements as rows
join tonight using (workload)
where setting = 'primary' and rows.night <= tonight.night and rows.night > tonight.night - {PRESENCE_DAYS}
group by all
"""

_MADE = f"""{_ROWS},
incumbents as (
    select distinct workload, artifact_digest from rows where setting = 'incumbent' and night = last
)
select candidate, series, night, setting = 'primary' as is_candidate,
    (workload, artifact_digest) in (from incumbents) as is_incumbent,
    workload, machine, fingerprint, environment, artifact_digest, data_digest, checkpoint_digest, calibration_digest,
    recipe_digest, source_digest, ratio, ratio_sd, quality
from rows
where status = 'ok' and setting in ('primary', 'incumbent')
    and (candidate in (select unnest($candidates)) or (workload, artifact_digest) in (from incumbents))
order by night, measured_at, run_id, attempt
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
class Made:
    """One measurement with what it was made of and measured in; ``ratio`` is the speed-up's logarithm."""

    candidate: int
    series: int
    night: dt.date
    is_candidate: bool
    is_incumbent: bool
    workload: str
    machine: str | None
    fingerprint: str | None
    environment: str | None
    artifact: str | None
    data: str | None
    checkpoint: str | None
    calibration: str | None
    recipe: str | None
    source: str | None
    ratio: float | None
    ratio_sd: float
    quality: float | None


@dataclass(frozen=True)
class Numbers:
    """Columns of measurements, by candidate and the oldest first; NaN where there is no number."""

    nights: NDArray[np.datetime64]
    hashes: dict[str, NDArray[np.uint64]]
    columns: dict[str, Floats]

    def __getitem__(self, column: str) -> Floats:
        return self.columns[column]

    def of(self, candidate: int) -> Numbers:
        """One candidate's rows."""
        candidates, wanted = self.hashes["candidate"], np.uint64(candidate)
        return self._chosen(slice(np.searchsorted(candidates, wanted), np.searchsorted(candidates, wanted, "right")))

    def where(self, column: str, value: int, since: dt.date | None) -> Numbers:
        """The rows with this hash in a column, from the night `since` on."""
        chosen = self.hashes[column] == np.uint64(value)
        return self._chosen(chosen if since is None else chosen & (self.nights >= np.datetime64(since)))

    def nightly_ratios(self) -> tuple[list[dt.date], Floats, Floats]:
        """Nights, mean logarithms of the speed-up and their standard deviations: a night's runs weigh by precision.

        A later run that was noisy takes nothing back of what an earlier one found.
        """
        timed = np.isfinite(self["ratio"])
        nights, position = np.unique(self.nights[timed], return_inverse=True)
        weight = 1 / self["ratio_sd"][timed] ** 2
        weights = np.bincount(position, weight).astype(float)
        return nights.tolist(), np.bincount(position, weight * self["ratio"][timed]) / weights, 1 / np.sqrt(weights)

    def _chosen(self, rows: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Numbers:
        return Numbers(
            self.nights[rows],
            {name: values[rows] for name, values in self.hashes.items()},
            {name: values[rows] for name, values in self.columns.items()},
        )


class History:
    """The history that a night (each workload's newest if None) is compared with, through an open catalog."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, night: dt.date | None) -> None:
        self._connection = connection
        self._night = "null::date" if night is None else f"date '{night.isoformat()}'"

    def tonight(self) -> list[Tonight]:
        """The night's good measurements, the latest last."""
        return [Tonight(Key(*row[:3]), *row[3:]) for row in self._rows(_TONIGHT)]

    def numbers(self) -> Numbers:
        """Every good measurement of the asked workloads up to the night."""
        columns = self._connection.execute(_NUMBERS.format(night=self._night)).fetchnumpy()
        hashes = {name: np.asarray(columns.pop(name), np.uint64) for name in ("candidate", "series", "quality_of")}
        nights = np.asarray(columns.pop("night"), "datetime64[D]")
        numbers: dict[str, Floats] = {
            name: np.ma.filled(np.ma.asarray(values, float), np.nan) for name, values in columns.items()
        }
        return Numbers(nights, hashes, numbers)._chosen(np.lexsort((numbers["at"], nights, hashes["candidate"])))

    def resets(self) -> dict[tuple[Key, FindingMetric | None], dt.date]:
        """The night from which on a candidate's metric (None: each) has a new reference."""
        return {(Key(*row[:3]), row[3]): row[4] for row in self._rows(_RESETS)}

    def presence(self) -> dict[str, dict[dt.date, set[Key]]]:
        """Each workload's candidates by night, failed ones included."""
        found: dict[str, dict[dt.date, set[Key]]] = {}
        for *names, nights in self._rows(_PRESENCE):
            key = Key(*names)
            for night in nights:
                found.setdefault(key.workload, {}).setdefault(night, set()).add(key)
        return found

    def made(self, candidates: Iterable[int]) -> list[Made]:
        """Every good measurement of these candidates and of the incumbents' bytes, oldest first."""
        return [Made(*row) for row in self._rows(_MADE, {"candidates": list(candidates)})]

    def _rows(self, sql: str, parameters: dict[str, Sequence[int]] | None = None) -> list[tuple]:  # type: ignore[type-arg]
        return self._connection.execute(sql.format(night=self._night), parameters or {}).fetchall()
