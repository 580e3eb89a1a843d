"""What a night would work with: ``nightquant workloads``, ``config`` and ``doctor``."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import Console
from rich.text import Text

from flows.commands import format_option, new_table, print_json, store_option, workload_option
from flows.request import NightlyRequest
from flows.settings import Settings, load_settings, source_of
from tasks.runtimes import RUNTIMES

_COLOURS = {"ok": "green", "note": "yellow", "problem": "bold red"}


@click.command()
@workload_option
@format_option("table", "json")
def workloads(workload: tuple[str, ...], format: str) -> None:
    """List the workloads with their recipes, or check your own workload files.

    \b
    Example:
      nightquant workloads
      nightquant workloads --workload my-model.toml
    """
    found = NightlyRequest(workloads=workload).load_workloads()
    if workload:
        # Only here: a night measures what it can, and has a row for what it cannot.
        for runtime in dict.fromkeys(name for each in found for recipe in each.recipe for name in recipe.runtimes):
            RUNTIMES[runtime].require_installed(runtime)
    if format == "json":
        print_json([each.model_dump(mode="json") for each in found])
        return
    table = new_table("Workloads", "workload", "description", "data", "model", "candidates", "baseline")
    for each in found:
        candidates = "\n".join(each.candidates())
        cells = (each.name, each.description, each.data.kind, each.model.kind, candidates, each.benchmark.baseline)
        table.add_row(*map(Text, cells))
    Console().print(table)


@click.command()
@format_option("table", "json")
def config(format: str) -> None:
    """Show every setting, its value and where it comes from; secrets are never shown.

    \b
    Example:
      nightquant config
      NIGHTQUANT_STORE=/srv/nightquant nightquant config
    """
    shown = load_settings().model_dump(mode="json")
    if format == "json":
        print_json(shown)
        return
    title = "Settings (flag beats NIGHTQUANT_… variable beats nightquant.toml)"
    table = new_table(title, "setting", "value", "from", "meaning")
    for name, field in Settings.model_fields.items():
        table.add_row(*map(Text, (name, str(shown[name]), source_of(name), field.description or "")))
    Console().print(table)


@click.command()
@store_option
@format_option("table", "json")
@click.pass_context
def doctor(context: click.Context, store: str, format: str) -> None:
    """Say what this machine is, whether int8 is fast on it, and whether its timings can be trusted.

    Exits with 0 only if a benchmark here can be trusted, else with 1.

    \b
    Example:
      nightquant doctor
      nightquant doctor --store /srv/nightquant --format json
    """
    from tasks.doctor import examine, trusted

    checks = examine(store, on_wait=lambda: click.echo("Another benchmark runs on this host: waiting.", err=True))
    good = trusted(checks)
    if format == "json":
        print_json({"trusted": good, "checks": [asdict(check) for check in checks]})
        context.exit(0 if good else 1)
    table = new_table("Can a benchmark on this machine be trusted?", "check", "", "found", "what to do")
    for check in checks:
        status = Text(check.status, style=_COLOURS[check.status])
        table.add_row(check.name, status, Text(check.found), Text(check.advice))
    Console().print(table)
    click.echo("Yes: benchmarks here can be trusted." if good else "No: see what to do about each problem.")
    context.exit(0 if good else 1)
