"""``nightquant status`` (the default command) shows the store's state; ``acknowledge`` accepts regressions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import asdict
from typing import get_args

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.commands import (
    age_option,
    by_option,
    format_option,
    night_option,
    print_json,
    print_result,
    reason_option,
    recipes_option,
    store_flag,
    store_option,
    workloads_option,
)
from flows.console import age, marked_lines, plain_table, shown_path
from flows.overview import Concern, Overview, overdue, overview, summary
from flows.reporter import elapsed
from storage.humanize import cut, moment
from storage.results import FindingMetric, Row
from storage.root import StoreRoot

_SHOWN_CONCERNS = 5
_CONCERN_LENGTH = 240
_USUAL = ('query "FROM leaderboard"', "report")
_FIRST = ("doctor", "nightly --profile quick", "workloads")


@click.command()
@age_option(
    "--max-age",
    help="Check only the age of the latest night without failures; exit with code 1 if that night is older than AGE, "
    "for instance 26h.",
)
@workloads_option("Check only this workload (requires --max-age); repeatable.", metavar="NAME")
@format_option("text", "json")
@store_option
@click.pass_context
def command(
    context: click.Context,
    max_age: dt.timedelta | None,
    workload: tuple[str, ...],
    format: str,
    store: str,
) -> None:
    """Show the state of the store: the latest night, current bundles, problems that need attention, and next steps.

    Without a subcommand, nightquant runs this command. The exit code is 0 even if problems need attention. With
    --max-age, the exit code is 1 if the store's last night without failures is older than AGE. If you also pass
    --workload, the command instead checks each named workload's last night without failures.

    \b
    Example:
      nightquant
      nightquant status --store /srv/nightquant --format json
      nightquant status --max-age 26h --workload word-lm
    """
    if workload and max_age is None:
        raise click.UsageError("--workload can be used only with --max-age. Add --max-age, or omit --workload.")
    now = dt.datetime.now(dt.UTC)
    if max_age is not None and (late := overdue(store, workload, max_age, now)):
        click.echo(f"nightquant: {store}: {'; '.join(late)}.", err=True)
        context.exit(1)
    if max_age is not None:
        return
    state = overview(store, now)
    steps = [f"nightquant {step}{'' if step == 'workloads' else store_flag(store)}" for step in _next(state)]
    if format == "json":
        print_json(asdict(state) | {"next": steps})
        return
    console = Console()
    console.print(Text.assemble(("Store  ", "bold"), shown_path(state.store)), soft_wrap=True, highlight=False)
    if state.last_run is None:
        status = "contains no results yet" if state.exists else "does not exist yet"
        console.print(f"       The store {status}; the first run will write its results there.")
    sections = {
        "Last night": marked_lines(_night(state.last_run, now)) if state.last_run else None,
        "Current": _current(state) if state.current else None,
        "Attention": marked_lines(_concerns(state.concerns)) if state.last_run or state.concerns else None,
        "Next" if state.last_run else "Begin": Text("\n").join(Text(f"  {step}") for step in steps),
    }
    for title, content in sections.items():
        if content is not None:
            console.print()
            console.print(title, style="bold", highlight=False)
            console.print(content, highlight=False, soft_wrap=isinstance(content, Text))


def _next(state: Overview) -> list[str]:
    """Return up to three commands: first the commands that the warnings suggest, then the usual commands."""
    if state.last_run is None:
        return list(_FIRST)
    commands = dict.fromkeys([*(concern.command for concern in state.concerns), *_USUAL])
    return list(commands)[:3]


def _night(last: Row, now: dt.datetime) -> Iterator[tuple[str, Text]]:
    started, finished = last["started_at"], last["finished_at"]
    assert isinstance(started, dt.datetime)
    assert isinstance(finished, dt.datetime)
    ended = f"{moment(finished)}, after {elapsed((finished - started).total_seconds())}"
    yield "", Text(f"{last['night']}, finished {age(now - finished)} ({ended})")
    style = "green" if last["status"] == "completed" else "bold red"
    yield "", Text.assemble((str(last["status"]), style), f", profile {last['profile']}: {summary(last)}")


def _current(state: Overview) -> Table:
    table = plain_table("", "", "")
    for bundle in state.current:
        by_hand = "" if bundle.action == "promote" else f", {bundle.action} by {bundle.by}"
        table.row(f"  {bundle.workload}", bundle.version, f"since {moment(bundle.since)}{by_hand}")
    return table


def _concerns(concerns: tuple[Concern, ...]) -> Iterator[tuple[str, Text]]:
    if not concerns:
        yield "", Text("nothing", style="green")
    for concern in concerns[:_SHOWN_CONCERNS]:
        yield "!", Text(cut(concern.text, _CONCERN_LENGTH), style="" if concern.kind == "held" else "yellow")
    if (more := len(concerns) - _SHOWN_CONCERNS) > 0:
        yield "", Text(f"and {more} more: nightquant status --format json")


@click.command()
@click.option(
    "--workload",
    "-w",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Accept regressions in this workload; repeatable.",
)
@recipes_option("Accept only regressions in this recipe; repeatable.")
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
@format_option("text", "json")
@store_option
def acknowledge(
    workload: tuple[str, ...],
    recipe: tuple[str, ...],
    runtime: tuple[str, ...],
    metric: tuple[str, ...],
    reason: str,
    by: str,
    night: dt.date | None,
    format: str,
    store: str,
) -> None:
    """Accept a night's regressions: stop reporting them, and compare later nights with that night.

    \b
    Example:
      nightquant acknowledge --workload word-lm --metric size_bytes --reason "a larger vocabulary"
    """
    from storage.results.regressions import acknowledge as accept  # imports SciPy

    accepted = accept(
        StoreRoot.of(store),
        night,
        workloads=workload,
        recipes=recipe,
        runtimes=runtime,
        metrics=metric,
        by=by,
        reason=reason,
    )
    print_result(format, accepted, (f"Acknowledged: {finding.describe()}" for finding in accepted))
