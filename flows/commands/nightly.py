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
from flows.settings import Settings, children_inherit, load_settings
from storage.results.query import open_catalog, rows_of
from storage.root import check_writable

Command = TypeVar("Command", bound=Callable[..., object])


def run_options(command: Command) -> Command:
    """Add the options for the contents of runs and for how runs execute their stages."""
    task_runner = click.option(
        "--task-runner",
        metavar="threads|dask|MODULE:CLASS",
        help="Run the stages with this Prefect task runner (default: threads).",
    )
    workers = click.option("--workers", type=click.IntRange(min=1), help="Run up to this many stages at once.")
    for option in (workers, task_runner, profile_option, store_option, recipe_option, workload_option):
        command = option(command)
    return command


@click.command()
@run_options
@night_option("Record the run under this date (default: today).")
@click.option("--timings", is_flag=True, help="Show how much time the stages and the benchmarks took.")
@format_option("text", "json")
@click.pass_obj
def nightly(
    debug: bool,
    workload: tuple[str, ...],
    recipe: tuple[str, ...],
    store: str,
    profile: str | None,
    task_runner: str | None,
    workers: int | None,
    night: date | None,
    timings: bool,
    format: str,
) -> int:
    """Prepare data and checkpoints, quantize and measure tonight's candidates, and publish the best candidates.

    \b
    Exit codes: 0 (success), 1 (some work failed), 2 (the request or the configuration is invalid), 3 (a regression
    was found), 4 (another run has locked the store).

    \b
    Example:
      nightquant nightly
      nightquant nightly --workload word-lm --recipe dynamic-int8 --profile quick --timings
    """
    settings = load_settings(store=store, profile=profile, task_runner=task_runner, workers=workers)
    request = _request(workload, recipe, settings, night)
    return exit_code_of(lambda: _run(request, settings, timings, as_json=format == "json"), debug=debug)


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


def _run(request: NightlyRequest, settings: Settings, timings: bool, *, as_json: bool) -> int:
    console = new_console(stderr=as_json)
    summary, server_s = outcome_of(NightSummary, "flows.nightly", request, settings, console)
    _show(console, summary)
    if as_json:
        click.echo(summary.model_dump_json(indent=1))
    if timings:
        _show_timings(console, summary, server_s)
    return summary.exit_code


def _show(console: Console, summary: NightSummary) -> None:
    outcomes = outcomes_of_run(summary.store, summary.run_id)
    with open_catalog(summary.store) as connection:
        query = "from nights_on($night) where run_id = $run"
        nights = rows_of(connection, query, night=summary.night, run=summary.run_id)
    for trouble in summary.trouble:
        console.print(f"This host was busy: {trouble}", style="bold yellow", highlight=False, markup=False)
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


def _show_timings(console: Console, summary: NightSummary, server_s: float) -> None:
    rest = summary.wall_s - summary.busy_s
    # On a cluster, the time spent outside the stages is unknown, because each process records only its own stages.
    split = f", of which {rest:.1f} s ({100 * rest / summary.wall_s:.1f}%) outside the stages" if summary.busy_s else ""
    text = f"[bold]Timings   [/bold]Prefect's server {server_s:.1f} s; flow {summary.wall_s:.1f} s{split}"
    if summary.benchmark_wall_s:
        outside = 100 * (1 - summary.benchmark_timed_s / summary.benchmark_wall_s)
        text += f"\n{'':10}benchmarks {summary.benchmark_wall_s:.1f} s, of which {outside:.0f}% outside timed blocks"
    console.print(text, highlight=False, soft_wrap=True)


@click.command()
@run_options
@click.option("--cron", default="0 2 * * *", show_default=True, help="Start runs on this cron schedule.")
@click.option("--timezone", default="Etc/UTC", show_default=True, help="Interpret --cron in this time zone.")
def serve(
    workload: tuple[str, ...],
    recipe: tuple[str, ...],
    store: str,
    profile: str | None,
    task_runner: str | None,
    workers: int | None,
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
    settings = load_settings(store=store, profile=profile, task_runner=task_runner, workers=workers)
    request = _request(workload, recipe, settings)
    require_api("a server must store the schedule")
    from flows.nightly import serve as serve_flow  # imports Prefect

    # A request does not contain these settings, and each run reads its settings from its environment.
    with children_inherit(NIGHTQUANT_TASK_RUNNER=settings.task_runner, NIGHTQUANT_WORKERS=str(settings.workers)):
        serve_flow(request, cron, timezone)
