"""``nightquant acknowledge``: accept what a night found."""

from __future__ import annotations

from datetime import date
from typing import get_args

import click

from flows.commands import night_option, recipe_option, store_option, user_name
from storage.results import FindingMetric


@click.command()
@click.option("--workload", "-w", multiple=True, required=True, metavar="NAME", help="Of which workload; repeatable.")
@recipe_option
@click.option("--runtime", multiple=True, metavar="NAME", help="Only with these runtimes; repeatable.")
@click.option(
    "--metric",
    multiple=True,
    type=click.Choice([name for name in get_args(FindingMetric) if name != "candidate"]),
    help="Only in these numbers; repeatable.",
)
@click.option("--reason", required=True, help="Why it is accepted; it is kept with the results.")
@click.option("--by", metavar="NAME", help="Who (default: the user's name).")
@night_option("The night that found it (default: the newest one).")
@store_option
def command(
    workload: tuple[str, ...],
    recipe: tuple[str, ...],
    runtime: tuple[str, ...],
    metric: tuple[str, ...],
    reason: str,
    by: str | None,
    night: date | None,
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
        by=by or user_name(),
        reason=reason,
    )
    for finding in accepted:
        click.echo(f"Acknowledged: {finding.describe()}")
