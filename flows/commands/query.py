"""``nightquant query`` and ``nightquant report``: query the results with SQL, or write a night's HTML report."""

from __future__ import annotations

import json
import shutil
import sys
from datetime import date
from pathlib import Path

import click
from click.core import ParameterSource

from flows.commands import FILE, format_option, night_option, print_result, store_option
from flows.console import WIDTH, print_leaderboard
from storage.results.catalog import described
from storage.results.formats import fitted, formatted
from storage.results.query import run_query

_EXAMPLE = """
\b
Examples:
  nightquant query "from leaderboard"
  nightquant query "select * from trend where workload = 'word-lm'" --format csv -o trend.csv
  nightquant query --list
"""
_LEADERBOARD = {"workload", "rank", "candidate", "decision", "over_best_float", "why"}
_MEANINGS = "select column_name, comment from duckdb_columns() where table_name = 'leaderboard'"


@click.command(epilog=_EXAMPLE)
@click.argument("sql", required=False)
@click.option("--list", "list_", is_flag=True, help="List the tables and views, with an example query for each.")
@click.option("-o", "--output", type=FILE, help="Write the result to this file.")
@format_option("table", "csv", "json", "parquet")
@store_option
def query(sql: str | None, list_: bool, output: Path | None, format: str, store: str) -> None:
    """Run a read-only DuckDB SQL query over the store's tables and views.

    In a terminal, the leaderboard shows only its main columns. Long text in other tables is cut off with "…". If a
    table is still too wide, each row is printed as a record, with one column per line. Output is never truncated if it
    goes to a file or a pipe, or if --format is given.
    """
    if list_:
        items = [f"{item.name} ({item.kind}): {item.meaning}\n    {item.example}\n" for item in described()]
        items.append(f"duckdb_columns() (function): The meaning of every column.\n    {_MEANINGS}\n")
        listed = [{"name": item.name, "kind": item.kind, "meaning": item.meaning} for item in described()]
        text = json.dumps(listed, indent=1) + "\n" if format == "json" else "\n".join(items)
        _write(text.encode(), output)
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
        _write(fitted(rows, width), output)


def _write(content: bytes, output: Path | None) -> None:
    if output is not None:
        try:
            output.write_bytes(content)
        except OSError as error:
            raise click.FileError(str(output), error.strerror or str(error)) from error
        return
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


@click.command()
@night_option("Report on this night (default: the latest).")
@click.option(
    "-o", "--output", type=FILE, default="report.html", show_default=True, help="Write the report to this file."
)
@format_option("text", "json")
@store_option
def report(night: date | None, output: Path, format: str, store: str) -> None:
    """Write a night's report as one self-contained HTML file with decisions, alerts, failures, hardware and plots.

    \b
    Example:
      nightquant report --night 2026-11-21 -o report.html
    """
    from storage.report import write_report  # import here, because importing scipy would slow down `query`

    written = write_report(store, night, output)
    print_result(format, {"night": written, "report": output}, [f"Report of the night {written}: {output}"])
