"""``nightquant compare``: two runs, candidate by candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.commands import format_option, print_json, store_option
from flows.comparison import Pair, RunComparison, compare_runs
from flows.tables import marked_lines
from flows.text import became, faster, signed
from storage.humanize import plural, ratio
from storage.results import Caches, Row, number


@click.command()
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@format_option("text", "json")
@store_option
def command(first: str, second: str, format: str, store: str) -> None:
    """Compare two runs, by their ids or nights (YYYY-MM-DD): what each candidate measured, and what changed.

    A night stands for all of its runs. Speed-ups have their 95% intervals; two that are apart do not overlap.

    \b
    Example:
      nightquant compare 2026-11-20 2026-11-21
      nightquant compare 20261120-0123456789ab 20261121-0123456789ab --format json
    """
    found = compare_runs(store, first, second)
    if format == "json":
        print_json(asdict(found))
        return
    console = Console()
    console.print(marked_lines(_runs(found)), highlight=False)
    for workload, pairs in groupby(found.pairs, key=lambda pair: pair.workload):
        mine = list(pairs)
        rows = [row for pair in mine for row in (pair.before, pair.after) if row is not None]
        metric = next((str(row["quality_metric"]) for row in rows if row["quality_metric"]), "quality")
        console.print()
        console.print(Text(workload, style="bold"))
        console.print(Text(_line("", "faster", "smaller", metric, "decision", metric), style="dim"), soft_wrap=True)
        for pair in mine:
            for line in _lines(pair, metric):
                console.print(line, highlight=False, soft_wrap=isinstance(line, Text))


def _runs(found: RunComparison) -> Iterator[tuple[str, str]]:
    for mark, runs in (("A", found.before), ("B", found.after)):
        for run in runs:
            counts = f"{plural(int(number(run, 'measured') or 0), 'candidate')}, {run['failed']} failed"
            yield mark, f"{run['night']}  {run['run_id']}  {run['profile']}, {run['status']}: {counts}"
    yield "≠", "; ".join(found.changed.values()) or "nothing that is recorded, for all candidates alike"


def _lines(pair: Pair, metric: str) -> Iterator[Text | Table]:
    """The candidate's name, a row for each run under it, and what is not the same."""
    rows = [(mark, row) for mark, row in (("A", pair.before), ("B", pair.after)) if row is not None]
    yield Text(f"  {pair.candidate}{'' if len(rows) == 2 else f' (only in {rows[0][0]})'}")
    for mark, row in rows:
        if row["status"] == "failed":
            error = str(row["error"]).partition("\n")[0]
            yield marked_lines([(f"    {mark}", f" failed in {row['stage']}: {error}")], width=5)
        else:
            yield Text(_line(mark, *_cells(row, pair.caches), metric))
    if remarks := list(_remarks(pair, [row for _, row in rows])):
        yield marked_lines([("    ≠", Text("; ".join(remarks), style="yellow"))], width=5)


def _line(mark: str, faster: str, smaller: str, quality: str, decision: str, metric: str) -> str:
    """A row whose columns are as wide for every candidate of a workload."""
    return f"    {mark:1}  {faster:<12}  {smaller:>7}  {quality:>{max(9, len(metric))}}  {decision}"


def _cells(row: Row, caches: Caches) -> tuple[str, str, str, str]:
    return (
        faster(row, "cold_" if caches == "cold" else ""),
        ratio(number(row, "size_ratio")),
        signed(number(row, "quality_difference")),
        became(row),
    )


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
