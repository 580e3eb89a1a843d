"""What a night would work with: ``nightquant workloads``, ``config`` and ``doctor``."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain

import click
from rich.console import Console
from rich.text import Text

from flows.commands import format_option, print_json, progress_of, store_option, workload_option
from flows.preview import in_worker, preview_lines
from flows.request import NightlyRequest
from flows.settings import Settings, load_settings, source_of
from flows.tables import new_table
from storage.errors import MeasurementError
from tasks.extensions import DOMAINS, RUNTIMES
from tasks.job import Progress
from tasks.results import Preview
from tasks.stages import preview
from tasks.workload import Workload, workload_schema

WRONG = 2
_COLOURS = {"ok": "green", "note": "yellow", "problem": "bold red"}


@click.command()
@workload_option
@click.option("--schema", is_flag=True, help="Print the JSON Schema of workload files, for editors.")
@click.option("--check", is_flag=True, help="Try each one out: data, model, weights, every candidate; train nothing.")
@store_option
@format_option("table", "json")
def workloads(workload: tuple[str, ...], schema: bool, check: bool, store: str, format: str) -> int:
    """List the workloads with their recipes, or check your own workload files.

    --check goes through a night but for training, calibration and timing, and keeps what it prepares for the night. It
    says which methods and runtimes fit and which modules would stay float; exit code 2 where something is wrong.

    \b
    Example:
      nightquant workloads
      nightquant workloads --workload my-model.toml
      nightquant workloads --workload my-model.toml --check
      nightquant workloads --schema > workload.schema.json
    """
    if schema:
        print_json(workload_schema())
        return 0
    found = NightlyRequest(workloads=workload).load_workloads()
    if check:
        return _check(found, store, as_json=format == "json")
    if workload:
        # Only here: a night measures what it can, and has a row for what it cannot.
        for runtime in dict.fromkeys(name for each in found for recipe in each.recipe for name in recipe.runtimes):
            RUNTIMES[runtime].require_installed(runtime)
        for domain in dict.fromkeys(each.domain for each in found):
            DOMAINS[domain].require_installed(domain)
    if format == "json":
        print_json([each.model_dump(mode="json") for each in found])
        return 0
    table = new_table("Workloads", "workload", "description", "data", "model", "candidates", "baseline")
    for each in found:
        candidates = "\n".join(each.candidates())
        cells = (each.name, each.description, each.data.kind, each.model.kind, candidates, each.benchmark.baseline)
        table.add_row(*map(Text, cells))
    Console().print(table)
    return 0


def _check(found: list[Workload], store: str, *, as_json: bool) -> int:
    """Try the workloads out in a worker process, which has a time limit, and print what was found."""
    previews = []
    for workload in found:
        with progress_of(f"{workload.name}: check") as progress:
            previews.append(_previewed(workload, store, progress))
    if as_json:
        print_json([each.model_dump(mode="json") for each in previews])
    else:
        for line in chain.from_iterable(map(preview_lines, previews)):
            Console().print(line, highlight=False, soft_wrap=True)
    return WRONG if any(each.problems for each in previews) else 0


def _previewed(workload: Workload, store: str, progress: Progress) -> Preview:
    try:
        return in_worker(preview, workload, store, progress)
    except MeasurementError as error:
        # It hangs, or its process died: the other workloads are checked all the same.
        return Preview(workload=workload.name, problems=(str(error),))


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
