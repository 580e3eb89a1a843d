"""``nightquant query``, ``report``, ``compare`` and ``acknowledge``: read the results, and accept regressions."""

from __future__ import annotations

import datetime as dt
import math
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import IO, get_args

import click
import duckdb
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.commands import FILE, by_option, format_option, night_option, print_json, reason_option, store_option
from flows.console import WIDTH, became, faster, marked_lines, metric_of, print_leaderboard, signed
from storage.errors import ConfigurationError
from storage.humanize import plural, ratio
from storage.results import FindingMetric, Row, deciding, number
from storage.results.catalog import described
from storage.results.query import boxed, formatted, open_catalog, rows_of, run_query
from storage.root import StoreRoot

_EXAMPLE = """
\b
Examples:
  nightquant query "from leaderboard"
  nightquant query "select * from trend where workload = 'word-lm'" --format csv -o trend.csv
  nightquant query --list
"""
_LEADERBOARD = {"workload", "rank", "candidate", "decision", "over_best_float", "why"}
_MEANINGS = "select column_name, comment from duckdb_columns() where table_name = 'leaderboard'"
# A date selects all runs of that night. If several runs measured a candidate, the last run's row is used.
_RUNS = "from runs where run_id = $name or night::text = $name order by started_at, run_id"
_ROWS = "from outcomes_of($runs) where setting = 'primary' order by workload, is_baseline desc, recipe, runtime"
_KNOWN = "select run_id, night from runs order by night desc, started_at desc limit 5"


@click.command(epilog=_EXAMPLE)
@click.argument("sql", required=False)
@click.option("--list", "list_", is_flag=True, help="List the tables and views, with an example query for each.")
@click.option("-o", "--output", type=click.File("wb"), metavar="FILE", help="Write the result to this file.")
@format_option("table", "csv", "json", "parquet")
@store_option
def query(sql: str | None, list_: bool, output: IO[bytes] | None, format: str, store: str) -> None:
    """Run a read-only DuckDB SQL query over the store's tables and views.

    In a terminal, the leaderboard shows only its main columns, and "…" stands for the middle columns of other tables
    that are too wide. Output is never shortened if it goes to a file or a pipe, or if --format is given.
    """
    if list_:
        items = [f"{item.name} ({item.kind}): {item.meaning}\n    {item.example}\n" for item in described()]
        items.append(f"duckdb_columns() (function): The meaning of every column.\n    {_MEANINGS}\n")
        _write("\n".join(items).encode(), output)
        return
    if not sql:
        raise click.UsageError('The SQL query is missing. Pass a query such as "from leaderboard", or pass --list.')
    if format == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("A terminal cannot show binary Parquet data. Name a file with -o, or pipe the output.")
    rows = run_query(store, sql)
    chosen = click.get_current_context().get_parameter_source("format") is not ParameterSource.DEFAULT
    if chosen or output is not None or not sys.stdout.isatty():
        _write(formatted(rows, format), output)
        return
    width, _ = shutil.get_terminal_size()
    if set(rows.column_names) >= _LEADERBOARD and rows.num_rows and width >= WIDTH:
        print_leaderboard(store, rows.to_pylist())
    else:
        _write(boxed(rows, width), output)


def _write(content: bytes, output: IO[bytes] | None) -> None:
    stream = output or sys.stdout.buffer
    stream.write(content)
    stream.flush()


@click.command()
@night_option("Report on this night (default: the latest).")
@click.option(
    "-o", "--output", type=FILE, default="report.html", show_default=True, help="Write the report to this file."
)
@store_option
def report(night: dt.date | None, output: Path, store: str) -> None:
    """Write a night's report as one self-contained HTML file with decisions, alerts, failures, hardware and plots.

    \b
    Example:
      nightquant report --night 2026-11-21 -o report.html
    """
    from storage.report import write_report  # import here, because importing scipy would slow down `query`

    written = write_report(store, night, output)
    click.echo(f"Report of the night {written}: {output}")


@dataclass(frozen=True)
class Pair:
    """A candidate and its row from each run; a row is None if the candidate is not in that run."""

    workload: str
    candidate: str
    before: Row | None
    after: Row | None
    times_as_fast: float | None = None
    is_apart: bool = False
    changed: dict[str, str] = field(default_factory=dict)


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
def compare(first: str, second: str, format: str, store: str) -> None:
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
        rows = chain.from_iterable((pair.before, pair.after) for pair in pairs)
        metric = metric_of([row for row in rows if row is not None])
        console.print()
        console.print(Text(workload, style="bold"))
        console.print(Text(_line("", "faster", "smaller", metric, "decision", metric), style="dim"), soft_wrap=True)
        for pair in pairs:
            for line in _lines(pair, comparison.changed, metric):
                console.print(line, highlight=False, soft_wrap=isinstance(line, Text))


def _runs(comparison: RunComparison) -> Iterator[tuple[str, str]]:
    for mark, runs in (("A", comparison.before), ("B", comparison.after)):
        for run in runs:
            counts = f"{plural(int(number(run, 'candidates_ok') or 0), 'candidate')}, {run['candidates_failed']} failed"
            yield mark, f"{run['night']}  {run['run_id']}  {run['profile']}, {run['status']}: {counts}"
    yield "≠", "; ".join(comparison.changed.values()) or "no recorded change that applies to all candidates"


def _lines(pair: Pair, common: dict[str, str], metric: str) -> Iterator[Text | Table]:
    """Yield lines for one candidate: the name, the row in each run, and the differences between the rows."""
    rows = [(mark, row) for mark, row in (("A", pair.before), ("B", pair.after)) if row is not None]
    yield Text(f"  {pair.candidate}{'' if len(rows) == 2 else f' (only in {rows[0][0]})'}")
    for mark, row in rows:
        if row["status"] == "failed":
            error = str(row["error"]).partition("\n")[0]
            yield marked_lines([(f"    {mark}", f" failed in {row['stage']}: {error}")], width=5)
        else:
            change = signed(number(row, "quality_difference"))
            speed = faster(row, deciding(rows[-1][1], "speedup"))
            yield Text(_line(mark, speed, ratio(number(row, "size_ratio")), change, became(row), metric))
    if remarks := list(_remarks(pair, common)):
        yield marked_lines([("    ≠", Text("; ".join(remarks), style="yellow"))], width=5)


def _line(mark: str, faster: str, smaller: str, quality: str, decision: str, metric: str) -> str:
    """Format a candidate's row; all rows of a workload have the same column widths."""
    return f"    {mark:1}  {faster:<12}  {smaller:>7}  {quality:>{max(9, len(metric))}}  {decision}"


def _remarks(pair: Pair, common: dict[str, str]) -> Iterator[str]:
    if pair.before is not None and pair.after is not None:
        if pair.is_apart and pair.times_as_fast is not None:
            change = 100 * (pair.times_as_fast - 1)
            yield f"{abs(change):.0f}% {'faster' if change > 0 else 'slower'}, intervals apart"
        old, new = number(pair.before, "size_bytes"), number(pair.after, "size_bytes")
        if old and new and old != new:
            yield f"size {100 * (new / old - 1):+.2g}%"
        if (before := became(pair.before)) != (after := became(pair.after)):
            yield f"{before} → {after}: {pair.after['why']}"
    yield from (text for name, text in pair.changed.items() if name not in common)


def compare_runs(place: str, first: str, second: str) -> RunComparison:
    """Compare two runs, each given by its id or its night (YYYY-MM-DD)."""
    with open_catalog(place) as connection:
        before, after = (_runs_named(connection, name) for name in (first, second))
        old, new = (_candidates(connection, runs) for runs in (before, after))
    keys = sorted(dict.fromkeys([*old, *new]), key=lambda key: key[0])
    pairs = [_pair(key, old.get(key), new.get(key)) for key in keys]
    changes = [pair.changed for pair in pairs if pair.before and pair.after]
    shared = changes[0] if changes else {}
    common = {name: text for name, text in shared.items() if all(change.get(name) == text for change in changes)}
    return RunComparison(tuple(before), tuple(after), common, tuple(pairs))


def _candidates(connection: duckdb.DuckDBPyConnection, runs: list[Row]) -> dict[tuple[str, str], Row]:
    rows = rows_of(connection, _ROWS, runs=[run["run_id"] for run in runs])
    return {(str(row["workload"]), str(row["candidate"])): row for row in rows}


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
        return Pair(*key, before, after)
    from storage.results.history import changes_between  # imports SciPy

    speedup = deciding(after, "speedup")
    ratios = number(before, speedup), number(after, speedup)
    times = ratios[1] / ratios[0] if ratios[0] and ratios[1] else None
    ends = [number(row, f"{speedup}_{end}") for row in (before, after) for end in ("low", "high")]
    low, high, new_low, new_high = (math.nan if end is None else end for end in ends)
    return Pair(*key, before, after, times, new_low > high or new_high < low, changes_between([before], after))


@click.command()
@click.option(
    "--workload",
    "-w",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Accept regressions in this workload; repeatable.",
)
@click.option(
    "--recipe", "-r", multiple=True, metavar="NAME", help="Accept only regressions in this recipe; repeatable."
)
@click.option("--runtime", multiple=True, metavar="NAME", help="Accept only regressions with this runtime; repeatable.")
@click.option(
    "--metric",
    multiple=True,
    type=click.Choice([name for name in get_args(FindingMetric) if name != "candidate"]),
    help="Accept only regressions in this metric; repeatable.",
)
@reason_option("Record this reason with the results.")
@by_option
@night_option("Accept regressions found on this night (default: the latest).")
@store_option
def acknowledge(
    workload: tuple[str, ...],
    recipe: tuple[str, ...],
    runtime: tuple[str, ...],
    metric: tuple[str, ...],
    reason: str,
    by: str,
    night: dt.date | None,
    store: str,
) -> None:
    """Accept a night's regressions: stop reporting them, and compare later nights with that night.

    \b
    Example:
      nightquant acknowledge --workload word-lm --metric size_bytes --reason "a larger vocabulary"
    """
    from storage.results.regressions import acknowledge as accept  # imports SciPy

    filters = {"workloads": workload, "recipes": recipe, "runtimes": runtime, "metrics": metric}
    for finding in accept(StoreRoot.of(store), night, by=by, reason=reason, **filters):
        click.echo(f"Acknowledged: {finding.describe()}")
