"""``nightquant nightly`` runs the flow once; ``nightquant serve`` runs it every night from one process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import TypeVar

import click
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from flows.commands import (
    format_option,
    night_option,
    profile_option,
    recipe_option,
    store_flag,
    store_option,
    workload_option,
)
from flows.commands.flow_runs import exit_code_of, outcome_of
from flows.console import new_console, night_lines, outcomes_of_run, shown_path
from flows.execution.server import require_api
from flows.request import NightlyRequest, NightSummary
from flows.settings import Settings, load_settings
from storage.results.query import open_catalog, rows_of
from storage.root import check_writable

Command = TypeVar("Command", bound=Callable[..., object])


def run_options(command: Command) -> Command:
    """Add the options for the contents of runs."""
    for option in (profile_option, store_option, recipe_option, workload_option):
        command = option(command)
    return command


@click.command()
@run_options
@click.option("--workers", type=click.IntRange(min=1), help="Run up to this many stages at once.")
@night_option("Record the run under this date (default: today).")
@format_option("text", "json")
@click.pass_obj
def nightly(
    debug: bool,
    workload: tuple[str, ...],
    recipe: tuple[str, ...],
    store: str,
    profile: str | None,
    workers: int | None,
    night: date | None,
    format: str,
) -> int:
    """Prepare data and checkpoints, quantize and measure tonight's candidates, and publish the best candidates.

    \b
    Exit codes: 0 (success), 1 (some work failed), 2 (the request or the configuration is invalid), 3 (a regression
    was found), 4 (another run has locked the store).

    \b
    Example:
      nightquant nightly
      nightquant nightly --workload word-lm --recipe dynamic-int8 --profile quick
    """
    settings = load_settings(store=store, profile=profile, workers=workers)
    request = _request(workload, recipe, settings, night)
    return exit_code_of(lambda: _run(request, settings, as_json=format == "json"), debug=debug)


def _request(
    workload: tuple[str, ...], recipe: tuple[str, ...], settings: Settings, night: date | None = None
) -> NightlyRequest:
    """Return a request after checking the workload files and the store."""
    request = NightlyRequest(
        workloads=workload, recipes=recipe, profile=settings.profile, night=night, store=settings.store
    )
    request.load_workloads()
    check_writable(settings.store)
    return request


def _run(request: NightlyRequest, settings: Settings, *, as_json: bool) -> int:
    console = new_console(stderr=as_json)
    summary = outcome_of(NightSummary, "flows.nightly:nightly_quantization", request, settings, console)
    _show(console, summary)
    if as_json:
        click.echo(summary.model_dump_json(indent=1))
    return summary.exit_code


def _show(console: Console, summary: NightSummary) -> None:
    outcomes = outcomes_of_run(summary.store, summary.run_id)
    with open_catalog(summary.store) as connection:
        query = "from nights_on($night) where run_id = $run"
        nights = rows_of(connection, query, night=summary.night, run=summary.run_id)
    for line in night_lines(outcomes, nights):
        console.print(line, highlight=False, soft_wrap=isinstance(line, Text))
    console.print()
    for finding in summary.findings:
        console.print(f"[bold]Compared with earlier nights:[/bold] {escape(finding)}", highlight=False)
    store = shown_path(summary.store)
    lines = [("Night", summary.message)]
    lines += [("Report", f"{store}/reports/{summary.night}.html")] if summary.report else []
    lines += [("Bundle", f"{store}/handoff/{bundle}") for bundle in summary.bundles]
    lines += [("Verify", f"nightquant handoff verify {store}/handoff/{bundle}") for bundle in summary.bundles[:1]]
    lines.append(("Ask", f'nightquant query{store_flag(store)} "from leaderboard"'))
    for name, value in lines:
        console.print(f"[bold]{name:8}[/bold]{escape(value)}", highlight=False, soft_wrap=True)


@click.command()
@run_options
@click.option("--cron", default="0 2 * * *", show_default=True, help="Start runs on this cron schedule.")
@click.option("--timezone", default="Etc/UTC", show_default=True, help="Interpret --cron in this time zone.")
def serve(
    workload: tuple[str, ...],
    recipe: tuple[str, ...],
    store: str,
    profile: str | None,
    cron: str,
    timezone: str,
) -> None:
    """Serve the nightly-quantization/served deployment from this process until you stop the command.

    You do not need a Prefect work pool or a worker. The command requires a running Prefect server (PREFECT_API_URL),
    because the schedule must outlive this process.

    \b
    Example:
      prefect server start &
      PREFECT_API_URL=http://127.0.0.1:4200/api nightquant serve --cron "30 1 * * *" --timezone Europe/Berlin
    """
    settings = load_settings(store=store, profile=profile)
    request = _request(workload, recipe, settings)
    require_api("a server must store the schedule")
    from flows.nightly import serve as serve_flow  # imports Prefect

    serve_flow(request, cron, timezone)
