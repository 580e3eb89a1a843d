"""What a night would work with: ``nightquant workloads``, ``config`` and ``doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click
from rich.console import Console
from rich.text import Text

from flows.commands import format_option, print_json, progress_of, store_option, workload_option
from flows.console import new_table
from flows.execution.workers import try_out
from flows.request import NightlyRequest
from flows.settings import Settings, load_settings, source_of
from storage.errors import MeasurementError
from storage.humanize import plural
from tasks.extensions import RUNTIMES
from tasks.machine import require_domain
from tasks.quantize.coverage import in_words
from tasks.results import CandidatePreview, Preview
from tasks.stages import preview
from tasks.workload import Workload, workload_schema

_COLOURS = {"ok": "green", "note": "yellow", "problem": "bold red"}


@click.command()
@workload_option
@click.option("--schema", is_flag=True, help="Print the JSON Schema of workload files, for editors.")
@click.option("--check", is_flag=True, help="Try each one out: data, model, weights, every candidate; train nothing.")
@store_option
@format_option("table", "json")
def workloads(workload: tuple[str, ...], schema: bool, check: bool, store: str, format: str) -> int:
    """List the workloads with their recipes, or check your own workload files.

    --check goes through a night but for training and timing, with little calibration and a sample of the test split. It
    keeps what it prepares for the night, and says which methods and runtimes fit, which modules would stay float, and
    which candidates lose quality if the weights are real. Exit code 2 where something is wrong.

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
        return _check(found, store, format)
    if workload:
        # Only here: a night measures what it can, and has a row for what it cannot.
        for runtime in dict.fromkeys(name for each in found for recipe in each.recipe for name in recipe.runtimes):
            RUNTIMES[runtime].require_installed(runtime)
        for each in found:
            require_domain(each)
    if format == "json":
        print_json(found)
        return 0
    table = new_table("Workloads", "workload", "description", "data", "model", "candidates", "baseline")
    for each in found:
        candidates = "\n".join(each.candidates())
        kinds = each.data.kind, each.model.kind
        table.row(each.name, each.description, *kinds, candidates, each.benchmark.baseline)
    Console().print(table)
    return 0


def _check(found: list[Workload], store: str, format: str) -> int:
    previews = []
    for workload in found:
        with progress_of(f"{workload.name}: check") as progress:
            try:
                previews.append(try_out(preview, workload, store, progress))
            except MeasurementError as error:
                # It hangs, or its process died: the other workloads are checked all the same.
                previews.append(Preview(workload=workload.name, problems=(str(error),)))
    if format == "json":
        print_json(previews)
    else:
        for each in previews:
            print_preview(each)
    return 2 if any(each.problems for each in previews) else 0


def print_preview(found: Preview) -> None:
    """Print what a preview found."""
    for line in preview_lines(found):
        Console().print(line, highlight=False, soft_wrap=True)


def preview_lines(found: Preview) -> Iterator[Text]:
    """Describe a preview: what there is, what fits, each candidate, and each problem."""
    if found.problems:
        yield Text(f"{found.workload}: {plural(len(found.problems), 'problem')}", style="bold red")
    else:
        yield Text(f"{found.workload}: fits", style="bold green")
    if found.splits:
        yield Text(f"  data      {', '.join(f'{count:,} {split}' for split, count in found.splits.items())}")
    yield from (Text(f"  ! {note}", style="yellow") for note in found.data_notes)
    if found.model:
        yield Text(f"  model     {found.model}, {found.parameters:,} parameters")
        yield Text(f"  inputs    {found.inputs}")
        yield Text(f"  outputs   {found.outputs}")
    if found.checkpoint:
        yield Text(f"  weights   {'; '.join([found.checkpoint, *found.notes])}")
        yield Text(f"  methods   {_fitting(found.methods)}")
        yield Text(f"  runtimes  {_fitting(found.runtimes)}")
    for each in found.candidates:
        yield Text(f"  {'✗' if each.obstacle else '✓'} {each.candidate}: {_candidate(each)}")
        if any(module.quantized for module in each.coverage):
            yield from (Text(f"      stays float: {line}") for line in in_words(each.coverage))
        if each.loss is not None:
            yield Text(f"  ! {each.candidate} {each.loss.describe()}", style="yellow")
    for problem in found.problems:
        yield Text(f"  ✗ {problem}", style="red")
    context = click.get_current_context(silent=True)
    if context is not None and context.find_root().obj is True:  # --debug
        yield from map(Text, found.tracebacks)


def _fitting(reasons: Mapping[str, str]) -> str:
    fit = ", ".join(name for name, reason in reasons.items() if not reason)
    return "; ".join([fit, *(f"not {name}: {reason.rstrip('.')}" for name, reason in reasons.items() if reason)])


def _candidate(found: CandidatePreview) -> str:
    if found.obstacle:
        return found.obstacle.partition("\n")[0]
    if found.exported_only:
        return "can be exported; compiling it takes minutes and was not tried"
    done = sum(module.quantized for module in found.coverage)
    return f"{done} of {plural(len(found.coverage), 'module')} quantized" if done else "fits"


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
        table.row(name, shown[name], source_of(name), field.description or "")
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
        print_json({"trusted": good, "checks": checks})
    else:
        table = new_table("Can a benchmark on this machine be trusted?", "check", "", "found", "what to do")
        for check in checks:
            table.row(check.name, Text(check.status, style=_COLOURS[check.status]), check.found, check.advice)
        Console().print(table)
        click.echo("Yes: benchmarks here can be trusted." if good else "No: see what to do about each problem.")
    context.exit(0 if good else 1)
