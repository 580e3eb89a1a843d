"""``nightquant compare``: compare the candidates of two runs, and list the changes between the runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import click
import duckdb
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.commands import format_option, print_json, store_option
from flows.console import became, faster, marked_lines, metric_of, signed
from flows.overview import has_results
from storage.errors import ConfigurationError, StoreError
from storage.humanize import plural, ratio
from storage.results import Caches, Row, caches_of, deciding, number
from storage.results.history import changes_between
from storage.results.query import open_catalog, rows_of
from storage.root import StoreRoot

# A date selects all runs of that night. If several runs measured a candidate, the last run's row is used.
_RUNS = """
select run_id, night, started_at, status, profile, candidates_ok as measured, candidates_failed as failed, host,
    git_commit
from runs
where run_id = $name or night::text = $name
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
    """A candidate and its row from each run; a row is None if the candidate is not in that run."""

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
    """A comparison of two runs or nights; ``changed`` describes the changes that apply to every candidate."""

    before: tuple[Row, ...]
    after: tuple[Row, ...]
    changed: dict[str, str]
    pairs: tuple[Pair, ...]


@click.command()
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@format_option("text", "json")
@store_option
def command(first: str, second: str, format: str, store: str) -> None:
    """Compare the candidates of two runs, each given by its id or its night (YYYY-MM-DD).

    A date selects all runs of that night. Each speed-up has a 95% interval; "intervals apart" means that the two
    intervals do not overlap.

    \b
    Example:
      nightquant compare 2026-11-20 2026-11-21
      nightquant compare 20261120-0123456789ab 20261121-0123456789ab --format json
    """
    comparison = compare_runs(store, first, second)
    if format == "json":
        print_json(comparison)
        return
    console = Console()
    console.print(marked_lines(_runs(comparison)), highlight=False)
    for workload, group in groupby(comparison.pairs, key=lambda pair: pair.workload):
        pairs = list(group)
        rows = [row for pair in pairs for row in (pair.before, pair.after) if row is not None]
        metric = metric_of(rows)
        console.print()
        console.print(Text(workload, style="bold"))
        console.print(Text(_line("", "faster", "smaller", metric, "decision", metric), style="dim"), soft_wrap=True)
        for pair in pairs:
            for line in _lines(pair, metric):
                console.print(line, highlight=False, soft_wrap=isinstance(line, Text))


def _runs(comparison: RunComparison) -> Iterator[tuple[str, str]]:
    for mark, runs in (("A", comparison.before), ("B", comparison.after)):
        for run in runs:
            counts = f"{plural(int(number(run, 'measured') or 0), 'candidate')}, {run['failed']} failed"
            yield mark, f"{run['night']}  {run['run_id']}  {run['profile']}, {run['status']}: {counts}"
    yield "≠", "; ".join(comparison.changed.values()) or "no recorded change that applies to all candidates"


def _lines(pair: Pair, metric: str) -> Iterator[Text | Table]:
    """Yield lines for one candidate: the name, the row in each run, and the differences between the rows."""
    rows = [(mark, row) for mark, row in (("A", pair.before), ("B", pair.after)) if row is not None]
    yield Text(f"  {pair.candidate}{'' if len(rows) == 2 else f' (only in {rows[0][0]})'}")
    for mark, row in rows:
        if row["status"] == "failed":
            error = str(row["error"]).partition("\n")[0]
            yield marked_lines([(f"    {mark}", f" failed in {row['stage']}: {error}")], width=5)
        else:
            speed = faster(row, "cold_speedup" if pair.caches == "cold" else "speedup")
            change = signed(number(row, "quality_difference"))
            yield Text(_line(mark, speed, ratio(number(row, "size_ratio")), change, became(row), metric))
    if remarks := list(_remarks(pair, [row for _, row in rows])):
        yield marked_lines([("    ≠", Text("; ".join(remarks), style="yellow"))], width=5)


def _line(mark: str, faster: str, smaller: str, quality: str, decision: str, metric: str) -> str:
    """Format a candidate's row; all rows of a workload have the same column widths."""
    return f"    {mark:1}  {faster:<12}  {smaller:>7}  {quality:>{max(9, len(metric))}}  {decision}"


def _remarks(pair: Pair, rows: Sequence[Row]) -> Iterator[str]:
    if len(rows) == 2:
        if pair.is_apart and pair.times_as_fast is not None:
            change = 100 * (pair.times_as_fast - 1)
            yield f"{abs(change):.0f}% {'faster' if change > 0 else 'slower'}, intervals apart"
        sizes = [number(row, "size_bytes") for row in rows]
        if sizes[0] and sizes[1] and sizes[0] != sizes[1]:
            yield f"size {100 * (sizes[1] / sizes[0] - 1):+.2g}%"
        before, after = map(became, rows)
        if before != after:
            yield f"{before} → {after}: {rows[1]['reason']}"
    yield from pair.changed.values()


def compare_runs(place: str, first: str, second: str) -> RunComparison:
    """Compare two runs, each given by its id or its night (YYYY-MM-DD)."""
    root = StoreRoot.of(place)
    if not has_results(root):
        raise StoreError(
            f"The store {root.url} contains no results.",
            hint="Run nightquant nightly first, or name another store with --store.",
        )
    with open_catalog(root) as connection:
        before, after = (_runs_named(connection, name) for name in (first, second))
        rows = [
            {
                (str(row["workload"]), str(row["candidate"])): row
                for row in rows_of(connection, _ROWS, runs=[run["run_id"] for run in runs])
            }
            for runs in (before, after)
        ]
    keys = sorted(dict.fromkeys([*rows[0], *rows[1]]), key=lambda key: key[0])
    pairs = [_pair(key, rows[0].get(key), rows[1].get(key)) for key in keys]
    changes = [pair.changed for pair in pairs if pair.before and pair.after]
    candidates = changes[0].items() if changes else ()
    common = {name: text for name, text in candidates if all(change.get(name) == text for change in changes)}
    own = tuple(
        replace(pair, changed={name: pair.changed[name] for name in pair.changed.keys() - common.keys()})
        for pair in pairs
    )
    return RunComparison(tuple(before), tuple(after), _changes_of_runs(before, after) | common, own)


def _runs_named(connection: duckdb.DuckDBPyConnection, name: str) -> list[Row]:
    runs = rows_of(connection, _RUNS, name=name)
    if not runs:
        known = ", ".join(f"{row['run_id']} ({row['night']})" for row in rows_of(connection, _KNOWN))
        raise ConfigurationError(
            f'The store contains no run or night "{name}".',
            hint=f"Pass a run id, or a night as YYYY-MM-DD. Latest runs: {known or 'none'}.",
        )
    return runs


def _pair(key: tuple[str, str], before: Row | None, after: Row | None) -> Pair:
    if before is None or after is None:
        return Pair(*key, before, after, None, False, {}, caches_of(after or before or {}))
    speedup = deciding(after, "speedup")
    ratios = number(before, speedup), number(after, speedup)
    times = ratios[1] / ratios[0] if ratios[0] and ratios[1] else None
    ends = [number(row, f"{speedup}_{end}") for row in (before, after) for end in ("low", "high")]
    low, high, new_low, new_high = (math.nan if end is None else end for end in ends)
    is_apart = new_low > high or new_high < low
    return Pair(*key, before, after, times, is_apart, changes_between([before], after), caches_of(after))


def _changes_of_runs(before: Sequence[Row], after: Sequence[Row]) -> dict[str, str]:
    changes = {}
    for column, name in (("profile", "profile"), ("git_commit", "nightquant's commit")):
        old, new = (str(runs[-1][column] or "unknown")[:12] for runs in (before, after))
        if old != new:
            changes[column] = f"{name} {old} → {new}"
    return changes
