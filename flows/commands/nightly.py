"""``nightquant nightly``: one night, here and now."""

from __future__ import annotations

import signal
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from flows.options import night_option, profile_option, recipe_option, store_option, workload_option

if TYPE_CHECKING:
    from rich.console import Console

    from flows.night import NightSummary
    from flows.request import NightlyRequest


@click.command()
@workload_option
@recipe_option
@store_option
@profile_option
@night_option
@click.option(
    "--task-runner",
    type=click.Choice(["threads", "processes", "dask", "ray"]),
    default=None,
    help="What fans the stages out (default: threads).",
)
@click.option("--workers", type=click.IntRange(min=1), default=None, help="Stages at work at once.")
@click.option("--timings", is_flag=True, help="Show where the wall time went.")
@click.pass_obj
def command(
    debug: bool,
    workload: tuple[str, ...],
    recipe: tuple[str, ...],
    store: str,
    profile: str | None,
    night: date | None,
    task_runner: str | None,
    workers: int | None,
    timings: bool,
) -> int:
    """Run a night: prepare, train or fetch, quantize, evaluate, benchmark, record, hand over.

    \b
    Exit codes: 0 good, 1 some work failed, 2 the request or the configuration is wrong, 3 a regression was found.

    \b
    Example:
      nightquant nightly
      nightquant nightly --workload word-lm --recipe dynamic-int8 --profile quick --timings
    """
    import os

    from flows.console import make_console
    from flows.request import NightlyRequest
    from flows.settings import load_settings
    from storage.probe import check_writable

    # The flow reads its settings itself, here as on a worker; what was given as a flag reaches it this way.
    for name, value in {"TASK_RUNNER": task_runner, "WORKERS": workers}.items():
        if value is not None:
            os.environ[f"NIGHTQUANT_{name}"] = str(value)
    if debug:
        os.environ |= {"PREFECT_LOGGING_LEVEL": "DEBUG", "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "DEBUG"}
    settings = load_settings(store=store, profile=profile)
    request = NightlyRequest.model_validate(
        {"workloads": workload, "recipes": recipe, "profile": settings.profile, "night": night, "store": store}
    )
    request.load_workloads()
    check_writable(store)
    return _run(request, settings.server_startup_timeout_s, make_console(), timings)


def _run(request: NightlyRequest, startup_timeout_s: float, console: Console, timings: bool) -> int:
    from flows.signals import Terminated, unwinding_on_sigterm

    try:
        with unwinding_on_sigterm():
            console.print("Starting Prefect …", style="dim")
            return _run_flow(request, startup_timeout_s, console, timings)
    except (Terminated, KeyboardInterrupt) as stop:
        number = signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT
        click.echo(
            f"nightquant: Stopped by {number.name}. Run again: what was prepared is found by its digest.", err=True
        )
        return 128 + number


def _run_flow(request: NightlyRequest, startup_timeout_s: float, console: Console, timings: bool) -> int:
    from flows.console import reporter_for
    from flows.server import prefect_api, server_gone

    with prefect_api(startup_timeout_s) as server_s:
        import httpx

        from flows.night import NightSummary
        from flows.nightly import nightly_quantization
        from flows.site import reporting_to

        try:
            with reporter_for(console) as reporter, reporting_to(reporter):
                state: Any = nightly_quantization(request, return_state=True)
                outcome: Any = state.result(raise_on_failure=False)
        except httpx.TransportError as error:
            raise server_gone(error) from error
    if isinstance(outcome, httpx.TransportError):
        raise server_gone(outcome) from outcome
    if isinstance(outcome, BaseException):
        raise outcome
    if not isinstance(outcome, NightSummary):
        raise click.ClickException(f"the flow run ended {state.name}: {state.message}")
    _show(console, outcome)
    if timings:
        _show_timings(console, outcome, server_s)
    return outcome.exit_code


def _show(console: Console, summary: NightSummary) -> None:
    from rich.markup import escape

    from flows.leaderboard import leaderboard
    from storage.results.query import run_query

    rows = run_query(summary.store, f"from measurements where run_id = '{summary.run_id}'").to_pylist()
    decided = run_query(summary.store, f"from promotions where run_id = '{summary.run_id}'").to_pylist()
    decisions = {(row["workload"], row["recipe"], row["runtime"]): row["decision"] for row in decided}
    console.print(leaderboard(rows, decisions))
    for finding in summary.findings:
        console.print(f"[bold]Against the nights before:[/bold] {escape(finding)}", highlight=False, soft_wrap=True)
    lines = {
        "Night": summary.message,
        "Results": f"{summary.store}/results",
        "Catalog": f"{summary.store}/results.duckdb",
        "Report": f"{summary.store}/reports/{summary.night}.html",
        "Artifacts": f"{summary.store}/artifacts",
        "Bundles": ", ".join(f"{summary.store}/handoff/{bundle}" for bundle in summary.bundles) or "none promoted",
        "Query": f'nightquant query --store {summary.store} "from leaderboard"',
    }
    for name, value in lines.items():
        console.print(f"[bold]{name:10}[/bold]{escape(value)}", highlight=False, soft_wrap=True)


def _show_timings(console: Console, summary: NightSummary, server_s: float) -> None:
    rest = summary.wall_s - summary.busy_s
    # Stages that ran in other processes or on other hosts kept their own clocks.
    split = f", of which {rest:.1f} s ({100 * rest / summary.wall_s:.1f}%) outside the stages"
    console.print(
        f"[bold]Timings[/bold]   Prefect's server {server_s:.1f} s; flow {summary.wall_s:.1f} s"
        f"{split if summary.busy_s else ''}",
        highlight=False,
        soft_wrap=True,
    )
    if summary.benchmark_wall_s:
        outside = 100 * (1 - summary.benchmark_timed_s / summary.benchmark_wall_s)
        console.print(
            f"          benchmarks {summary.benchmark_wall_s:.1f} s, of which {outside:.0f}% outside timed blocks",
            highlight=False,
            soft_wrap=True,
        )
