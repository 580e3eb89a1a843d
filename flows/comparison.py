"""Two runs beside each other: what each candidate measured and was decided, and what changed between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import duckdb

from flows.overview import has_results
from storage.errors import ConfigurationError, StoreError
from storage.results import Caches, Row, caches_of, deciding, number
from storage.results.history import changes_between
from storage.results.query import open_catalog, rows_of
from storage.root import StoreRoot

# A night stands for all of its runs; of a candidate that several measured, the last one's row counts.
_RUNS = """
select run_id, night, started_at, status, profile, candidates_ok as measured, candidates_failed as failed, host,
    git_commit
from runs
where run_id = $asked or night::text = $asked
order by started_at, run_id
"""

_ROWS = """
select workload, recipe, runtime, candidate, status, stage, error, became, speedup, speedup_low, speedup_high,
    caches, cold_speedup, cold_speedup_low, cold_speedup_high, size_bytes, size_ratio,
    quality_metric, quality, quality_difference, quality_difference_low, quality_difference_high,
    is_baseline, decision, incumbent_stays, why as reason,
    machine, fingerprint, environment, artifact_digest, data_digest,
    checkpoint_digest, calibration_digest, recipe_digest, source_digest
from outcomes_of($runs)
where setting = 'primary'
order by workload, is_baseline desc, recipe, runtime
"""

_KNOWN = "select run_id, night from runs order by night desc, started_at desc limit 5"


@dataclass(frozen=True)
class Pair:
    """A candidate in both runs; a row is None where it was not in that run. ``changed`` says with what it changed.

    ``times_as_fast`` is the second speed-up ÷ the first, None without both; ``is_apart`` whether the two 95% intervals
    have nothing in common. ``caches`` says of which calls: those that the gate of the second run decided by.
    """

    workload: str
    candidate: str
    before: Row | None
    after: Row | None
    times_as_fast: float | None
    is_apart: bool
    changed: dict[str, str]
    caches: Caches


@dataclass(frozen=True)
class RunComparison:
    """Two runs (or nights, which may have several); ``changed`` holds what changed for every candidate alike."""

    before: tuple[Row, ...]
    after: tuple[Row, ...]
    changed: dict[str, str]
    pairs: tuple[Pair, ...]


def compare_runs(place: str, first: str, second: str) -> RunComparison:
    """Compare two runs, each by its id or its night (YYYY-MM-DD).

    Raises
    ------
    ConfigurationError
        One of them is not in the store.
    StoreError
        The store holds no results.
    """
    root = StoreRoot.of(place)
    if not has_results(root):
        raise StoreError(
            f"The store {root.url} holds no results.",
            hint="Run a night first (nightquant nightly), or name another store with --store.",
        )
    with open_catalog(root) as connection:
        before, after = (_runs(connection, asked) for asked in (first, second))
        rows = [
            {_key(row): row for row in rows_of(connection, _ROWS, runs=[run["run_id"] for run in runs])}
            for runs in (before, after)
        ]
    keys = list(dict.fromkeys([*rows[0], *rows[1]]))
    pairs = [_pair(key, rows[0].get(key), rows[1].get(key)) for key in sorted(keys, key=lambda key: key[0])]
    common = _common([pair.changed for pair in pairs if pair.before and pair.after])
    own = tuple(
        replace(pair, changed={name: pair.changed[name] for name in pair.changed.keys() - common.keys()})
        for pair in pairs
    )
    return RunComparison(tuple(before), tuple(after), _of_runs(before, after) | common, own)


def _runs(connection: duckdb.DuckDBPyConnection, asked: str) -> list[Row]:
    runs = rows_of(connection, _RUNS, asked=asked)
    if not runs:
        known = ", ".join(f"{row['run_id']} ({row['night']})" for row in rows_of(connection, _KNOWN))
        raise ConfigurationError(
            f'There is no run or night "{asked}".', hint=f"The newest are: {known}. A night is written YYYY-MM-DD."
        )
    return runs


def _key(row: Row) -> tuple[str, str]:
    return str(row["workload"]), str(row["candidate"])


def _pair(key: tuple[str, str], before: Row | None, after: Row | None) -> Pair:
    if before is None or after is None:
        return Pair(*key, before, after, None, False, {}, caches_of(after or before or {}))
    speedup = deciding(after, "speedup")
    ratios = number(before, speedup), number(after, speedup)
    times = ratios[1] / ratios[0] if ratios[0] and ratios[1] else None
    is_apart = _are_apart(before, after, speedup)
    return Pair(*key, before, after, times, is_apart, changes_between([before], after), caches_of(after))


def _are_apart(before: Row, after: Row, speedup: str) -> bool:
    low, high = number(before, f"{speedup}_low"), number(before, f"{speedup}_high")
    new_low, new_high = number(after, f"{speedup}_low"), number(after, f"{speedup}_high")
    if low is None or high is None or new_low is None or new_high is None:
        return False
    return new_low > high or new_high < low


def _common(changes: Sequence[dict[str, str]]) -> dict[str, str]:
    if not changes:
        return {}
    return {name: text for name, text in changes[0].items() if all(each.get(name) == text for each in changes)}


def _of_runs(before: Sequence[Row], after: Sequence[Row]) -> dict[str, str]:
    """What changed about the runs themselves, by their last ones."""
    found = {}
    for column, name in (("profile", "profile"), ("git_commit", "nightquant's commit")):
        old, new = (str(runs[-1][column] or "unknown")[:12] for runs in (before, after))
        if old != new:
            found[column] = f"{name} {old} → {new}"
    return found
