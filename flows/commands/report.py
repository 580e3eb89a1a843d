"""``nightquant report``: the night's report as one HTML file."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import click

from flows.options import night_option, store_option


@click.command()
@night_option("The night to report (default: the newest one).")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="The file to write.",
)
@store_option
def command(night: date | None, output: Path, store: str) -> None:
    """Write a night's report: leaderboard, plots, regressions, failures, machine; one HTML file, no network.

    \b
    Example:
      nightquant report --night 2026-11-21 -o report.html
    """
    from storage.report import write_report

    written = write_report(store, night, output)
    click.echo(f"Report of the night {written}: {output}")
