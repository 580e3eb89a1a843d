"""``nightquant acknowledge``: accept what a night found."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from typing import get_args

import click

from flows.commands import (
    by_option,
    complete_workload,
    format_option,
    night_option,
    print_json,
    reason_option,
    recipe_option,
    store_option,
)
from storage.results import FindingMetric


@click.command()
@click.option(
    "--workload",
    "-w",
    multiple=True,
    required=True,
    metavar="NAME",
    shell_complete=complete_workload,
    help="Of which workload; repeatable.",
)
@recipe_option
@click.option("--runtime", multiple=True, metavar="NAME", help="Only with these runtimes; repeatable.")
@click.option(
    "--metric",
    multiple=True,
    type=click.Choice([name for name in get_args(FindingMetric) if name != "candidate"]),
    help="Only in these numbers; repeatable.",
)
@reason_option("Why it is accepted; it is kept with the results.")
@by_option
@night_option("The night that found it (default: the newest one).")
@format_option("text", "json")
@store_option
def command(
    workload: tuple[str, ...],
    recipe: tuple[str, ...],
    runtime: tuple[str, ...],
    metric: tuple[str, ...],
    reason: str,
    by: str,
    night: date | None,
    format: str,
    store: str,
) -> None:
    """Accept what a night found: it is told no more, and that night is the number's new reference.

    \b
    Example:
      nightquant acknowledge --workload word-lm --metric size_bytes --reason "a larger vocabulary"
    """
    from storage.results.acknowledgements import acknowledge
    from storage.root import StoreRoot

    accepted = acknowledge(
        StoreRoot.of(store),
        night,
        workloads=workload,
        recipes=recipe,
        runtimes=runtime,
        metrics=metric,
        by=by,
        reason=reason,
    )
    if format == "json":
        print_json([asdict(finding) for finding in accepted])
        return
    for finding in accepted:
        click.echo(f"Acknowledged: {finding.describe()}")
