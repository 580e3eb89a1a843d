"""``nightquant store``: commands that check, compact and clean the store."""

from __future__ import annotations

import click

from flows.commands import format_option, print_result, store_option
from storage.check import check as check_store
from storage.errors import StoreError
from storage.gc import collect
from storage.humanize import plural
from storage.results.compact import compact as compact_store
from storage.root import StoreRoot


@click.group()
def command() -> None:
    """Check, compact or clean the store.

    \b
    Examples:
      nightquant store check
      nightquant store compact
      nightquant store gc --keep-nights 30 --dry-run
    """


@command.command()
@format_option("text", "json")
@store_option
@click.pass_context
def check(context: click.Context, format: str, store: str) -> None:
    """Check every results file and artifact, and list each problem with its remedy.

    The exit code is 1 if the check finds a problem.

    \b
    Example:
      nightquant store check --store s3://bucket/nightquant
    """
    _require_store(store)
    checked = check_store(store)
    count = len(checked.problems)
    lines = [f"{problem.where} {problem.what}.\n    {problem.remedy}" for problem in checked.problems]
    lines.append(
        f"{checked.results_files} results files and {checked.artifacts} artifacts in {store}: "
        + (f"{plural(count, 'problem')}." if count else "no problems.")
    )
    print_result(format, checked, lines)
    context.exit(1 if count else 0)


def _require_store(store: str) -> None:
    """Refuse a location that does not contain a store; otherwise, a mistyped location would pass the check."""
    root = StoreRoot.of(store)
    if not any(root.list(folder) for folder in ("results", "artifacts", "handoff")):
        raise StoreError(
            f"There is no store at {root.url}: the location does not contain results, artifacts or bundles.",
            hint="Give the path or URL of the store with --store.",
        )


@command.command()
@format_option("text", "json")
@store_option
def compact(format: str, store: str) -> None:
    """Merge each finished month's results files and rebuild the catalog, without stopping readers or writers.

    \b
    Example:
      nightquant store compact
    """
    result = compact_store(store)
    lines = [f"compacted {month}" for month in result.written]
    counts = f"{plural(len(result.written), 'month')} written, {plural(result.files_removed, 'merged file')} deleted."
    print_result(format, result, [*lines, counts])


@command.command()
@click.option(
    "--keep-nights",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    metavar="N",
    help="Keep the artifacts of the latest N nights.",
)
@click.option("--dry-run", is_flag=True, help="List the files that would be removed, but do not remove them.")
@format_option("text", "json")
@store_option
def gc(keep_nights: int, dry_run: bool, format: str, store: str) -> None:
    """Remove artifacts that are not used by any bundle or by the latest N nights.

    If the store is on an object store, the command also cleans this host's cache. Run the command on each host.

    If a run is active, the command removes nothing and exits with code 4. --dry-run works even during a run.

    \b
    Example:
      nightquant store gc --keep-nights 30 --dry-run
    """
    result = collect(store, keep_nights, dry_run=dry_run)
    lines = [f"{entry.kind} {entry.digest[:12]} ({entry.size / 1e6:.1f} MB)" for entry in result.removed]
    lines.append(
        f"{len(result.removed)} artifacts and {len(result.leftovers)} left-over files {'would be ' * dry_run}removed "
        f"({result.bytes_freed / 1e6:.1f} MB); {result.kept} artifacts kept."
    )
    if StoreRoot.of(store).local is None:
        size = sum(entry.size for entry in result.cached)
        count = plural(len(result.cached), "file")
        lines.append(f"In this host's cache: {count} {'would be ' * dry_run}removed ({size / 1e6:.1f} MB).")
    print_result(format, result, lines)
