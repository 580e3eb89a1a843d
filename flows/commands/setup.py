"""``nightquant workloads``, ``config`` and ``doctor``: show or check the workloads, the settings and the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click
from rich.console import Console
from rich.text import Text

from flows.commands import format_option, print_json, print_tracebacks, store_option, workload_option
from flows.console import new_table
from flows.request import NightlyRequest
from flows.sampled import compared
from flows.settings import Settings, load_settings, source_of
from flows.trial import built, running
from storage.errors import NightquantError
from storage.humanize import plural
from tasks.libraries import LibraryError
from tasks.refs import in_words
from tasks.results import CandidatePreview, Preview
from tasks.workload import Workload, workload_schema

_COLOURS = {"ok": "green", "note": "yellow", "problem": "bold red"}


@click.command()
@workload_option
@click.option("--schema", is_flag=True, help="Print the JSON Schema of workload files, for editors.")
@click.option("--check", is_flag=True, help="Check the data, model, weights and candidates without training the model.")
@store_option
@format_option("table", "json")
def workloads(workload: tuple[str, ...], schema: bool, check: bool, store: str, format: str) -> int:
    """List the workloads with their recipes, or check your own workload files.

    With --check, the command tests the data, model, weights and candidates without training or timing the model. The
    check uses small samples of the calibration data and the test split. Later runs reuse the prepared data. The check
    reports compatible methods and runtimes, and the modules that would stay in float. If the workload provides trained
    weights, the check also lists candidates with a noticeable quality loss. The exit code is 2 if the check finds a
    problem.

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
    loaded = NightlyRequest(workloads=workload).load_workloads()
    if check:
        return _check(loaded, store, format)
    if format == "json":
        print_json(loaded)
        return 0
    table = new_table("Workloads", "workload", "description", "data", "model", "candidates", "baseline")
    for entry in loaded:
        candidates = "\n".join(entry.candidates())
        kinds = entry.data.kind, entry.model.kind
        table.row(entry.name, entry.description, *kinds, candidates, entry.benchmark.baseline)
    Console().print(table)
    return 0


def _check(loaded: list[Workload], store: str, format: str) -> int:
    previews = []
    with running(store) as run:
        for workload in loaded:
            result = Preview(workload=workload.name)
            try:
                result = built(workload, run)
                for further in compared(workload, result, run):
                    result = further
            except NightquantError as error:
                # If one workload hangs or kills its process, the command still checks the other workloads.
                tracebacks = [error.in_full()] if isinstance(error, LibraryError) else []
                result = result.model_copy(update={"problems": (*result.problems, str(error))})
                print_tracebacks(tracebacks)
            print_tracebacks(result.tracebacks)
            previews.append(result)
    if format == "json":
        print_json(previews)
    else:
        for result in previews:
            print_preview(result)
    return 2 if any(result.problems for result in previews) else 0


def print_preview(result: Preview) -> None:
    """Print a preview."""
    for line in preview_lines(result):
        Console().print(line, highlight=False, soft_wrap=True)


def preview_lines(result: Preview) -> Iterator[Text]:
    """Yield lines that describe a preview: model, data, compatible methods and runtimes, candidates, and problems."""
    if result.problems:
        yield Text(f"{result.workload}: {plural(len(result.problems), 'problem')}", style="bold red")
    else:
        yield Text(f"{result.workload}: fits", style="bold green")
    if result.splits:
        yield Text(f"  data      {', '.join(f'{count:,} {split}' for split, count in result.splits.items())}")
    yield from (Text(f"  ! {note}", style="yellow") for note in result.data_notes)
    if result.model:
        yield Text(f"  model     {result.model}, {result.parameters:,} parameters")
        yield Text(f"  inputs    {result.inputs}")
        yield Text(f"  outputs   {result.outputs}")
    if result.checkpoint:
        yield Text(f"  weights   {'; '.join([result.checkpoint, *result.notes])}")
        yield Text(f"  methods   {_fitting(result.methods)}")
        yield Text(f"  runtimes  {_fitting(result.runtimes)}")
    if result.reference:
        yield Text(f"  quality   {result.reference.describe()}")
    for candidate in result.candidates:
        yield Text(f"  {'✗' if candidate.obstacle else '✓'} {candidate.candidate}: {_candidate(candidate)}")
        if any(module.quantized for module in candidate.coverage):
            yield from (Text(f"      stays float: {line}") for line in in_words(candidate.coverage))
        for note in candidate.built.notes if candidate.built else ():
            yield Text(f"      {note}")
        if candidate.loss is not None:
            yield Text(f"  ! {candidate.candidate} {candidate.loss.describe()}", style="yellow")
        if candidate.undecided:
            yield Text(f"  ! {candidate.candidate}: {candidate.undecided}", style="yellow")
        if candidate.uncompared:
            why = f"was not compared with the float model: {candidate.uncompared}"
            yield Text(f"  ! {candidate.candidate} {why}", style="yellow")
    for problem in result.problems:
        yield Text(f"  ✗ {problem}", style="red")


def _fitting(reasons: Mapping[str, str]) -> str:
    fit = ", ".join(name for name, reason in reasons.items() if not reason)
    return "; ".join([fit, *(f"not {name}: {reason.rstrip('.')}" for name, reason in reasons.items() if reason)])


def _candidate(candidate: CandidatePreview) -> str:
    if candidate.obstacle:
        return candidate.obstacle.partition("\n")[0]
    if candidate.exported_only:
        return "can be exported; it was not compiled, because that takes minutes"
    quantized = sum(module.quantized for module in candidate.coverage)
    return f"{quantized} of {plural(len(candidate.coverage), 'module')} quantized" if quantized else "fits"


@click.command()
@format_option("table", "json")
def config(format: str) -> None:
    """Show every setting with its value and its source, but hide secrets.

    \b
    Example:
      nightquant config
      NIGHTQUANT_STORE=/srv/nightquant nightquant config
    """
    values = load_settings().model_dump(mode="json")
    if format == "json":
        print_json(values)
        return
    title = "Settings (flag beats NIGHTQUANT_… variable beats nightquant.toml)"
    table = new_table(title, "setting", "value", "from", "meaning")
    for name, field in Settings.model_fields.items():
        table.row(name, values[name], source_of(name), field.description or "")
    Console().print(table)


@click.command()
@store_option
@format_option("table", "json")
@click.pass_context
def doctor(context: click.Context, store: str, format: str) -> None:
    """Describe this host and its int8 speed, and check for conditions that make timings unreliable.

    The exit code is 1 if a benchmark fails, or if the store is full or not writable. Notes about noisy timings or other
    running programs do not change the exit code.

    \b
    Example:
      nightquant doctor
      nightquant doctor --store /srv/nightquant --format json
    """
    from tasks.doctor import examine

    checks = examine(store, on_wait=lambda: click.echo("Waiting for another benchmark on this host to end.", err=True))
    good = all(check.status != "problem" for check in checks)
    if format == "json":
        print_json({"trusted": good, "checks": checks})
    else:
        table = new_table("Conditions for benchmarks on this host", "check", "", "found", "what to do")
        for check in checks:
            table.row(check.name, Text(check.status, style=_COLOURS[check.status]), check.found, check.advice)
        Console().print(table)
        click.echo("No problems found." if good else "Follow the advice on each problem.")
    context.exit(0 if good else 1)
