"""``nightquant store``: check, compact and clean the store."""

from __future__ import annotations

import click

from flows.commands import format_option, print_result, store_option
from storage.check import check as check_store
from storage.gc import collect
from storage.humanize import plural
from storage.results.compact import compact as compact_store


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
    """Read every results file and artifact; say what is wrong and what to do, and exit 1 if anything is.

    \b
    Example:
      nightquant store check --store s3://bucket/nightquant
    """
    checked = check_store(store)
    found = len(checked.problems)
    lines = [f"{problem.where} {problem.what}.\n    {problem.remedy}" for problem in checked.problems]
    lines.append(
        f"{checked.results_files} results files and {checked.artifacts} artifacts in {store}: "
        + (f"{plural(found, 'problem')}." if found else "all good.")
    )
    print_result(format, checked, lines)
    context.exit(1 if found else 0)


@command.command()
@format_option("text", "json")
@store_option
def compact(format: str, store: str) -> None:
    """Put each finished month's results files into one, and make the catalog anew; readers and writers go on.

    The small files of a month are deleted by the next compaction at least twelve hours later.

    \b
    Example:
      nightquant store compact
    """
    done = compact_store(store)
    lines = [f"compacted {month}" for month in done.written]
    lines += [f"dropped the small files of {month}" for month in done.retired]
    counts = f"{len(done.written)} written, {len(done.retired)} swapped in"
    print_result(format, done, [*lines, f"{counts}, {done.files_removed} small files removed."])


@command.command()
@click.option("--keep-nights", type=click.IntRange(min=1), default=30, show_default=True, metavar="N")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@format_option("text", "json")
@store_option
def gc(keep_nights: int, dry_run: bool, format: str, store: str) -> None:
    """Remove artifacts that no bundle and no row of the newest N nights refers to; exit 4 while a night is running.

    \b
    Example:
      nightquant store gc --keep-nights 30 --dry-run
    """
    done = collect(store, keep_nights, dry_run=dry_run)
    lines = [f"{each.kind} {each.digest[:12]} ({each.size / 1e6:.1f} MB)" for each in done.removed]
    lines.append(
        f"{len(done.removed)} artifacts and {len(done.leftovers)} left-over files "
        f"{'would be removed' if dry_run else 'removed'} ({done.bytes_freed / 1e6:.1f} MB); {done.kept} artifacts kept."
    )
    removed = [{"kind": each.kind, "digest": each.digest, "size_bytes": each.size} for each in done.removed]
    left = [{"name": entry.name, "size_bytes": entry.size} for entry in done.leftovers]
    print_result(format, {"dry_run": dry_run, "removed": removed, "leftovers": left, "kept": done.kept}, lines)
