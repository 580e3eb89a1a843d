"""``nightquant workloads``, ``config``, ``doctor`` and ``store``: check the workloads, settings, host and store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click
from rich.console import Console
from rich.text import Text

from flows.commands import format_option, print_json, print_tracebacks, store_option, workload_option
from flows.console import new_table
from flows.request import NightlyRequest
from flows.settings import Settings, load_settings
from flows.trial import built, compared, running
from storage.check import check as check_store
from storage.errors import NightquantError, StoreError
from storage.gc import collect
from storage.humanize import plural
from storage.results.compact import compact as compact_store
from storage.root import StoreRoot
from tasks.environment.libraries import LibraryError
from tasks.values.refs import in_words
from tasks.values.results import CandidatePreview, Preview
from tasks.workload import Workload, workload_schema

_COLOURS = {"ok": "green", "note": "yellow", "problem": "bold red"}


@click.command()
@workload_option
@click.option("--schema", is_flag=True, help="Print the JSON Schema of workload files, for editors.")
@click.option("--check", is_flag=True, help="Check the data, model, weights and candidates without training the model.")
@store_option
def workloads(workload: tuple[str, ...], schema: bool, check: bool, store: str) -> int:
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
        return _check(loaded, store)
    table = new_table("Workloads", "workload", "description", "data", "model", "candidates", "baseline")
    for entry in loaded:
        candidates = "\n".join(map(str, entry.candidates()))
        kinds = entry.data.kind, entry.model.kind
        table.row(entry.name, entry.description, *kinds, candidates, entry.benchmark.baseline)
    Console().print(table)
    return 0


def _check(loaded: list[Workload], store: str) -> int:
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
        yield from (Text(f"  ! {warning}", style="yellow") for warning in warnings_about(candidate))
    for problem in result.problems:
        yield Text(f"  ✗ {problem}", style="red")


def warnings_about(candidate: CandidatePreview) -> Iterator[str]:
    """Describe a candidate's loss on a sample, and why the loss or the gate's decision is unknown."""
    if candidate.loss is not None:
        yield f"{candidate.candidate} {candidate.loss.describe()}"
    if candidate.undecided:
        yield f"{candidate.candidate}: {candidate.undecided}"
    if candidate.uncompared:
        yield f"{candidate.candidate} was not compared with the float model: {candidate.uncompared}"


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
def config() -> None:
    """Show every setting with its value, but hide secrets.

    \b
    Example:
      nightquant config
      NIGHTQUANT_STORE=/srv/nightquant nightquant config
    """
    values = load_settings().model_dump(mode="json")
    title = "Settings (flag beats NIGHTQUANT_… variable beats nightquant.toml)"
    table = new_table(title, "setting", "value", "meaning")
    for name, field in Settings.model_fields.items():
        table.row(name, values[name], field.description or "")
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
    from tasks.measure.doctor import examine

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


@click.group()
def store() -> None:
    """Check, compact or clean the store.

    \b
    Examples:
      nightquant store check
      nightquant store compact
      nightquant store gc --keep-nights 30 --dry-run
    """


@store.command()
@store_option
@click.pass_context
def check(context: click.Context, store: str) -> None:
    """Check every results file and artifact, and list each problem with its remedy.

    The exit code is 1 if the check finds a problem.

    \b
    Example:
      nightquant store check --store s3://bucket/nightquant
    """
    root = StoreRoot.of(store)
    # A mistyped location would pass the check.
    if not any(root.list(folder) for folder in ("results", "artifacts", "handoff")):
        raise StoreError(
            f"There is no store at {root.url}: the location does not contain results, artifacts or bundles.",
            hint="Give the path or URL of the store with --store.",
        )
    checked = check_store(root)
    for problem in checked.problems:
        click.echo(f"{problem.where} {problem.what}.\n    {problem.remedy}")
    found = plural(len(checked.problems), "problem") if checked.problems else "no problems"
    click.echo(f"{checked.results_files} results files and {checked.artifacts} artifacts in {store}: {found}.")
    context.exit(1 if checked.problems else 0)


@store.command()
@store_option
def compact(store: str) -> None:
    """Merge each finished month's results files and rebuild the catalog, without stopping readers or writers.

    \b
    Example:
      nightquant store compact
    """
    result = compact_store(store)
    for month in result.written:
        click.echo(f"compacted {month}")
    merged = plural(result.files_removed, "merged file")
    click.echo(f"{plural(len(result.written), 'month')} written, {merged} deleted.")


@store.command()
@click.option(
    "--keep-nights",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    metavar="N",
    help="Keep the artifacts of the latest N nights.",
)
@click.option("--dry-run", is_flag=True, help="List the files that would be removed, but do not remove them.")
@store_option
def gc(keep_nights: int, dry_run: bool, store: str) -> None:
    """Remove artifacts that are not used by any bundle or by the latest N nights.

    If the store is on an object store, the command also cleans this host's cache. Run the command on each host.

    If a run is active, the command removes nothing and exits with code 4. --dry-run works even during a run.

    \b
    Example:
      nightquant store gc --keep-nights 30 --dry-run
    """
    result = collect(store, keep_nights, dry_run=dry_run)
    removed = f"{'would be ' * dry_run}removed"
    for entry in result.removed:
        click.echo(f"{entry.kind} {entry.digest[:12]} ({entry.size / 1e6:.1f} MB)")
    click.echo(
        f"{len(result.removed)} artifacts and {len(result.leftovers)} left-over files {removed} "
        f"({result.bytes_freed / 1e6:.1f} MB); {result.kept} artifacts kept."
    )
    if StoreRoot.of(store).local is None:
        size = sum(entry.size for entry in result.cached)
        click.echo(f"In this host's cache: {plural(len(result.cached), 'file')} {removed} ({size / 1e6:.1f} MB).")
