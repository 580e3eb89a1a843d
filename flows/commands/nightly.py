"""``nightquant nightly`` runs the flow once; ``nightquant serve`` runs it every night from one process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click
import httpx
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
from flows.console import new_console, night_lines, shown_path
from flows.execution.server import ServerGoneError, prefect_api, require_api, server_gone
from flows.execution.signals import Terminated, unwinding_on_sigterm
from flows.reporter import reporter_for
from flows.request import NightlyRequest, NightSummary, SearchRequest
from flows.settings import Settings, load_settings, without_signing_key
from storage.results.query import open_catalog, rows_of
from storage.root import check_writable

if TYPE_CHECKING:
    from prefect import Flow

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., object])
_SERVER = "Prefect's server"


def _run_options(command: Command) -> Command:
    """Add the options for the contents of runs."""
    for option in (profile_option, store_option, recipe_option, workload_option):
        command = option(command)
    return command


@click.command()
@_run_options
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
    summary = outcome_of(NightSummary, request, settings, console)
    _show(console, summary)
    if as_json:
        click.echo(summary.model_dump_json(indent=1))
    return summary.exit_code


def _show(console: Console, summary: NightSummary) -> None:
    with open_catalog(summary.store) as connection:
        outcomes = rows_of(connection, "from outcomes_of([$run]) order by workload, rank", run=summary.run_id)
        query = "from nights_on($night) where run_id = $run"
        nights = rows_of(connection, query, night=summary.night, run=summary.run_id)
    for line in night_lines(outcomes, nights):
        console.print(line, highlight=False, soft_wrap=isinstance(line, Text))
    console.print()
    for finding in summary.findings:
        console.print(f"[bold]Compared with earlier nights:[/bold] {escape(finding)}", highlight=False)
    store = shown_path(summary.store)
    lines = [("Night", summary.message), *(("Note", remark) for remark in summary.remarks)]
    lines += [("Report", f"{store}/reports/{summary.night}.html")] if summary.report else []
    lines += [("Bundle", f"{store}/handoff/{bundle}") for bundle in summary.bundles]
    lines += [("Verify", f"nightquant handoff verify {store}/handoff/{bundle}") for bundle in summary.bundles[:1]]
    lines.append(("Ask", f'nightquant query{store_flag(store)} "from leaderboard"'))
    for name, value in lines:
        console.print(f"[bold]{name:8}[/bold]{escape(value)}", highlight=False, soft_wrap=True)


@click.command()
@_run_options
@click.option("--cron", default="0 2 * * *", show_default=True, help="Start runs on this cron schedule.")
@click.option("--timezone", default="Etc/UTC", show_default=True, help="Interpret --cron in this time zone.")
def serve(
    workload: tuple[str, ...], recipe: tuple[str, ...], store: str, profile: str | None, cron: str, timezone: str
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
    require_api("the schedule needs one")
    from flows.nightly import serve as serve_flow  # imports Prefect

    serve_flow(request, cron, timezone)


def exit_code_of(run: Callable[[], int], *, debug: bool) -> int:
    """Call `run` and return its exit code; if a signal arrives or Prefect's server stops, print a one-line message."""
    if debug:
        os.environ |= {"PREFECT_LOGGING_LEVEL": "DEBUG", "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "DEBUG"}
    try:
        # Remove the signing key from the environment, because Prefect's server and the workers do not need it.
        with unwinding_on_sigterm(), without_signing_key():
            return run()
    except ServerGoneError as error:
        if debug:
            raise
        click.echo(f"nightquant: {error}", err=True)
        sys.stdout.flush()
        # On a normal exit, Prefect's client would try for minutes to send its events to the stopped server.
        os._exit(error.exit_code)
    except (Terminated, KeyboardInterrupt) as stop:
        return stopped_by(signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def stopped_by(number: signal.Signals) -> int:
    """Print that a signal stopped the command, and return the exit code."""
    click.echo(
        f"nightquant: Stopped by {number.name}. To continue, run the command again; finished artifacts are reused.",
        err=True,
    )
    return 128 + number


def _flow_of(request: NightlyRequest | SearchRequest) -> Flow[..., Any]:
    """Import a request's flow once the server's URL is set, because Prefect reads its settings on import."""
    if isinstance(request, SearchRequest):
        from flows.search import search_recipes

        return search_recipes
    from flows.nightly import nightly_quantization

    return nightly_quantization


def outcome_of(expected: type[T], request: NightlyRequest | SearchRequest, settings: Settings, console: Console) -> T:
    """Run the request's flow, and return the flow's result."""
    with reporter_for(console) as reporter:
        reporter.started(_SERVER)
        with prefect_api(meanwhile=partial(_flow_of, request)):
            reporter.finished(_SERVER)
            from flows.execution.context import run_flow

            try:
                state = run_flow(_flow_of(request), request, settings, reporter)
                outcome = state.result(raise_on_failure=False)
            except httpx.TransportError as error:
                raise server_gone(error) from error
    if isinstance(outcome, httpx.TransportError):
        raise server_gone(outcome) from outcome
    if isinstance(outcome, BaseException):
        raise outcome
    if not isinstance(outcome, expected):
        raise click.ClickException(
            f"The flow run ended in the unexpected state {state.name}: {state.message}. "
            "To see Prefect's log, repeat the command with --debug."
        )
    return outcome
