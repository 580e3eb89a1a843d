"""``nightquant show``: list all workloads, or describe one workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.commands import complete_workload, format_option, print_json, store_flag, store_option
from flows.console import became, faster, marked_lines, metric_of, plain_table, signed
from flows.story import Current, Outline, Story, outlines, story
from storage.humanize import MISSING, moment, ratio, size
from storage.results import Row, number
from tasks.workload.gate import RULES

_SHOWN_LAYERS = 5


@click.command()
@click.argument("workload", required=False, shell_complete=complete_workload)
@click.option(
    "--nights", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="Show the last N nights."
)
@format_option("text", "json")
@store_option
def command(workload: str | None, nights: int, format: str, store: str) -> None:
    """Show WORKLOAD's current bundle, recent nights, layers and recipe; without WORKLOAD, list all workloads.

    \b
    Example:
      nightquant show
      nightquant show word-lm --nights 30
    """
    console = Console()
    if workload is None:
        rows = outlines(store)
        if format == "json":
            print_json(rows)
        elif not rows:
            click.echo(f"The store {store} contains no workloads yet. Run: nightquant nightly{store_flag(store)}")
        else:
            table = _table(rows, with_candidate=True)
            needed = console.measure(table, options=console.options.update(max_width=1000)).maximum
            console.print(table if needed <= console.width else _table(rows, with_candidate=False), highlight=False)
        return
    result = story(store, workload, nights)
    if format == "json":
        print_json(result)
        return
    for title, lines in _sections(result, store).items():
        console.print()
        console.print(title, style="bold", highlight=False)
        for line in lines:
            console.print(line, highlight=False)


def _table(outlines: Sequence[Outline], *, with_candidate: bool) -> Table:
    """Return a table with one line per workload; include the wide candidate column if `with_candidate` is true."""
    candidate = ["candidate"] if with_candidate else []
    numbers = ("faster", "smaller")
    table = plain_table("workload", "current bundle", *numbers, "last night", *candidate, right=numbers)
    for outline in outlines:
        last = outline.last or {}
        cells = (MISSING,) * 4
        if last:
            cells = (faster(last), ratio(number(last, "size_ratio")), became(last), _candidate(last))
        table.row(outline.workload, outline.version or MISSING, *cells[: 3 + len(candidate)])
    return table


def _sections(content: Story, store: str) -> dict[str, Iterator[object]]:
    sections = {f"{content.workload}: current bundle": _current(content.current)}
    sections[f"Nights (quality: {metric_of(content.nights)})"] = _nights(content.nights)
    sections["Layers"] = _layers(content, store)
    if any(number(row, "int8_time_share") or row["doubts"] or _unknown_reason(row) for row in content.executed):
        sections["Executed"] = _executed(content.executed)
    if content.current:
        sections["Recipe"] = _recipe(content.current.recipe)
    return sections


def _current(current: Current | None) -> Iterator[object]:
    if current is None:
        yield Text("  none: no candidate has been promoted yet")
        return
    switch = current.switch
    action = {"promote": "promoted", "promote-by-hand": "promoted by hand", "rollback": "rolled back to"}[switch.action]
    table = plain_table("", "")
    table.row("  candidate", f"{current.candidate}, {size(current.size_bytes)}")
    table.row("  version", current.version)
    table.row("  since", f"{moment(switch.at)}, {action} by {switch.by}")
    table.row("  why", switch.reason)
    if switch.reason != current.decision["reason"]:
        table.row("  its night", current.decision["reason"])
    for rule in current.rules:
        table.row("  rule", _rule(rule))
    yield table


def _rule(outcome: Row) -> str:
    rule = RULES[str(outcome["name"])]
    write = size if rule.unit == "bytes" else "{:.4g}".format
    bound, seen = number(outcome, "bound"), number(outcome, "seen")
    note = f" ({outcome['note']})" if outcome.get("note") else ""
    shown = MISSING if seen is None else write(seen)
    return f"{rule.words} {rule.direction} {write(bound or 0)}: {shown}, {outcome['outcome']}{note}"


def _nights(nights: Sequence[Row]) -> Iterator[object]:
    if not nights:
        yield Text("  none yet")
    # Show each candidate's name as a heading, because the name is too wide for the table.
    for name, rows in groupby(nights, key=_candidate):
        yield Text(f"  {name}")
        group = list(rows)
        # Omit the column if no night in the group has timings with cold caches.
        speeds = ("faster", "cold") if any(number(row, "cold_speedup") for row in group) else ("faster",)
        numbers = (*speeds, "quality", "smaller")
        table = plain_table("  night", *numbers, "decision", "bundle", right=numbers)
        for row in group:
            rest = (signed(number(row, "quality_difference")), ratio(number(row, "size_ratio")), became(row))
            table.row(f"  {row['night']}", *_speeds(row)[: len(speeds)], *rest, row["bundle_version"] or MISSING)
        yield table
    newest = nights[0] if nights else {}
    if newest.get("reason"):
        yield marked_lines([("", f"{newest['night']}: {newest['reason']}")])


def _layers(content: Story, store: str) -> Iterator[object]:
    for row in content.coverage:
        if row["quantized"]:
            candidate = "/".join(str(row[part]) for part in ("recipe", "runtime") if row[part])
            yield Text(f"  {candidate}: {row['quantized']} of {row['modules']} modules quantized")
    for recipe, rows in groupby(content.layers, key=lambda row: row["recipe"]):
        table = plain_table(f"  most sensitive with {recipe}", "type", "SQNR (dB)", right=("SQNR (dB)",))
        for row in list(rows)[:_SHOWN_LAYERS]:
            sqnr_db = number(row, "sqnr_db")
            noise = MISSING if sqnr_db is None else f"{sqnr_db:.1f}"
            table.row(f"  {row['module']}", row["type"], noise)
        yield table
    if not content.layers:
        yield Text(f"  no study yet; run: nightquant sensitivity --workload {content.workload}{store_flag(store)}")


def _executed(executed: Sequence[Row]) -> Iterator[object]:
    """Show each candidate's int8 instructions and share of operator time spent in int8, followed by all warnings."""
    table = plain_table("  candidate", "int8", "by", right=("int8",))
    warnings: list[str] = []
    for row in executed:
        if share := number(row, "int8_time_share"):
            kinds = [kind.split()[0] for kind in str(row["instructions"] or "").split(", ") if kind]
            by = ", ".join(kind for kind in kinds if kind not in ("other", "float")) or MISSING
            table.row(f"  {_candidate(row)}", f"{share:.0%}", by)
        warnings += [f"  {_candidate(row)}: {warning}" for warning in str(row["doubts"]).splitlines()]
        if why := _unknown_reason(row):
            warnings.append(f"  {_candidate(row)}: unknown: {why}")
    yield table
    yield from (Text(warning, style="yellow") for warning in warnings)


def _unknown_reason(row: Row) -> str:
    """Return the reason that a candidate's executed operators are unknown, or ``""`` if they are known."""
    if number(row, "int8_time_share") is not None or row["instructions"] or not row["unknown"]:
        return ""
    return str(row["unknown"]).partition("\n")[0]


def _recipe(recipe: Row) -> Iterator[object]:
    table = plain_table("", "")
    for name, value in recipe.items():
        if value not in (None, "", []):
            table.row(f"  {name}", ", ".join(map(str, value)) if isinstance(value, list) else value)
    yield table


def _candidate(row: Row) -> str:
    return f"{row['recipe']}/{row['runtime']}"


def _speeds(row: Row) -> tuple[str, str]:
    """Format the speed-ups with warm and cold caches; add the interval only to the speed-up that the gate uses."""
    if row["caches"] == "cold":
        return ratio(number(row, "speedup")), faster(row)
    return faster(row), ratio(number(row, "cold_speedup"))
