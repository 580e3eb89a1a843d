"""``nightquant query``: SQL over the results."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from flows.options import format_option, store_option

_EXAMPLE = """
\b
Examples:
  nightquant query "select workload, recipe, runtime, speedup from leaderboard"
  nightquant query "select * from trend where workload = 'word-lm'" --format csv -o trend.csv
  nightquant query --list
"""


@click.command(epilog=_EXAMPLE)
@click.argument("sql", required=False)
@click.option("--list", "list_", is_flag=True, help="List tables and views, with an example for each.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file.")
@format_option("table", "csv", "json", "markdown", "parquet")
@store_option
def command(sql: str | None, list_: bool, output: Path | None, format: str, store: str) -> None:
    """Run SQL (DuckDB's) over the store's tables and views; it can only read."""
    if list_:
        _write(_listing(), output)
        return
    if not sql:
        raise click.UsageError('Give some SQL, for instance: nightquant query "from leaderboard", or --list.')
    if format == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("Parquet is no text: name a file with -o, or pipe it.")
    from storage.results.formats import formatted
    from storage.results.query import run_query

    _write(formatted(run_query(store, sql), format), output)


def _listing() -> bytes:
    from storage.results.query import described

    items = [f"{item.name} ({item.kind}): {item.meaning}\n    {item.example}\n" for item in described()]
    return "\n".join(items).encode()


def _write(content: bytes, output: Path | None) -> None:
    if output is not None:
        try:
            output.write_bytes(content)
        except OSError as error:
            raise click.FileError(str(output), error.strerror or str(error)) from error
        return
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The reader (head, less) has seen enough. A closed stdout would raise again at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
