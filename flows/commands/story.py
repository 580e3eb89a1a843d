"""``nightquant show``: each workload in a line, or one workload's story."""

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
@click.option("--nights", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="How many.")
@format_option("text", "json")
@store_option
def command(workload: str | None, nights: int, format: str, store: str) -> None:
    """Tell WORKLOAD's story: current bundle and why, last nights, layers, recipe; without it, a line for each.

    \b
    Example:
      nightquant show
      nightquant show word-lm --nights 30
    """
    console = Console()
    if workload is None:
        found = outlines(store)
        if format == "json":
            print_json(found)
        elif not found:
            click.echo(f"No workload in {store} yet. Run a night first: nightquant nightly{store_flag(store)}")
        else:
            table = _table(found, with_candidate=True)
            needed = console.measure(table, options=console.options.update(max_width=1000)).maximum
            console.print(table if needed <= console.width else _table(found, with_candidate=False), highlight=False)
        return
    told = story(store, workload, nights)
    if format == "json":
        print_json(told)
        return
    for title, lines in _sections(told, store).items():
        console.print()
        console.print(title, style="bold", highlight=False)
        for line in lines:
            console.print(line, highlight=False)


def _table(outlines: Sequence[Outline], *, with_candidate: bool) -> Table:
    """A line for each; names of candidates are long, and left out where there is no room."""
    candidate = ["candidate"] if with_candidate else []
    numbers = ("faster", "smaller")
    table = plain_table("workload", "current bundle", *numbers, "last night", *candidate, right=numbers)
    for each in outlines:
        last = each.last or {}
        cells = (MISSING,) * 4
        if last:
            cells = (faster(last), ratio(number(last, "size_ratio")), became(last), _candidate(last))
        table.row(each.workload, each.version or MISSING, *cells[: 3 + len(candidate)])
    return table


def _sections(told: Story, store: str) -> dict[str, Iterator[object]]:
    sections = {f"{told.workload}: current bundle": _current(told.current)}
    sections[f"Nights (quality: {metric_of(told.nights)})"] = _nights(told.nights)
    sections["Layers"] = _layers(told, store)
    if any(number(row, "int8_time_share") or _unproven(row) for row in told.executed):
        sections["What ran"] = _executed(told.executed)
    if told.current:
        sections["Recipe"] = _recipe(told.current.recipe)
    return sections


def _current(current: Current | None) -> Iterator[object]:
    if current is None:
        yield Text("  none: no candidate has been promoted yet")
        return
    switch = current.switch
    did = {"promote": "promoted", "promote-by-hand": "promoted by hand", "rollback": "rolled back to"}[switch.action]
    table = plain_table("", "")
    table.row("  what", f"{current.candidate}, {size(current.size_bytes)}")
    table.row("  version", current.version)
    table.row("  since", f"{moment(switch.at)}, {did} by {switch.by}")
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
    # The candidate as a heading: its name would not fit beside the numbers.
    for name, rows in groupby(nights, key=_candidate):
        yield Text(f"  {name}")
        shown = list(rows)
        # Before there were cold calls there was no such column, and no room is lost to it.
        speeds = ("faster", "cold") if any(number(row, "cold_speedup") for row in shown) else ("faster",)
        numbers = (*speeds, "quality", "smaller")
        table = plain_table("  night", *numbers, "decision", "bundle", right=numbers)
        for row in shown:
            rest = (signed(number(row, "quality_difference")), ratio(number(row, "size_ratio")), became(row))
            table.row(f"  {row['night']}", *_speeds(row)[: len(speeds)], *rest, row["bundle_version"] or MISSING)
        yield table
    newest = nights[0] if nights else {}
    if newest.get("reason"):
        yield marked_lines([("", f"{newest['night']}: {newest['reason']}")])


def _layers(told: Story, store: str) -> Iterator[object]:
    for row in told.coverage:
        if row["quantized"]:
            candidate = "/".join(str(row[part]) for part in ("recipe", "runtime") if row[part])
            yield Text(f"  {candidate}: {row['quantized']} of {row['modules']} modules quantized")
    for recipe, rows in groupby(told.layers, key=lambda row: row["recipe"]):
        table = plain_table(f"  most sensitive with {recipe}", "type", "SQNR (dB)", right=("SQNR (dB)",))
        for row in list(rows)[:_SHOWN_LAYERS]:
            sqnr_db = number(row, "sqnr_db")
            noise = MISSING if sqnr_db is None else f"{sqnr_db:.1f}"
            table.row(f"  {row['module']}", row["type"], noise)
        yield table
    if not told.layers:
        yield Text(f"  not studied: nightquant sensitivity --workload {told.workload}{store_flag(store)}")


def _executed(executed: Sequence[Row]) -> Iterator[object]:
    """Each candidate's share of time in int8, where it has one, and by which products."""
    table = plain_table("  candidate", "int8", "by", right=("int8",))
    doubts: list[str] = []
    for row in executed:
        if share := number(row, "int8_time_share"):
            kinds = [each.split()[0] for each in str(row["instructions"] or "").split(", ") if each]
            by = ", ".join(kind for kind in kinds if kind not in ("other", "float")) or MISSING
            table.row(f"  {_candidate(row)}", f"{share:.0%}", by)
            doubts += [f"  {_candidate(row)}: {doubt}" for doubt in str(row["doubts"]).splitlines()]
        elif why := _unproven(row):
            doubts.append(f"  {_candidate(row)}: unknown: {why}")
    yield table
    yield from (Text(doubt, style="yellow") for doubt in doubts)


def _unproven(row: Row) -> str:
    """Return why nobody could see what a candidate executes; "" if somebody could."""
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
    """With warm and with cold caches; there is room for one interval, that of the one that decides."""
    if row["caches"] == "cold":
        return ratio(number(row, "speedup")), faster(row)
    return faster(row), ratio(number(row, "cold_speedup"))
