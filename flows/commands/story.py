"""``nightquant show``: the current bundle, past nights, layers and recipe of one workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import click
from rich.console import Console
from rich.text import Text

from flows.commands import format_option, print_json, store_flag, store_option, workload_argument
from flows.commands.status import has_results
from flows.console import became, faster, marked_lines, metric_of, plain_table, signed
from storage.bundles import BundleStore
from storage.errors import ConfigurationError
from storage.humanize import MISSING, moment, ratio, size
from storage.pointer import Switch
from storage.results import Row, number
from storage.results.query import open_catalog, rows_of
from storage.root import StoreRoot
from storage.seal import check_sums, read_manifest
from tasks.workload.gate import RULES

_SHOWN_LAYERS = 5

# If the current bundle was not replaced, the night's row describes that bundle. If no bundle stayed current, the
# night's row describes the candidate with the best decision and rank. The row of a bundle that stayed current contains
# measurements of the bundle's own files or of an identical candidate.
_HISTORY = """
select rows.* exclude (became), came.version as bundle_version,
    came.outcome = 'kept' and (setting = 'incumbent' or rows.candidate = came.candidate) as incumbent_stays,
    case when incumbent_stays then 'stays' else rows.became end as became,
    case when incumbent_stays then came.why else rows.why end as reason
from (select * exclude (incumbent_stays) from outcomes_on(null::date, nights := $nights)) as rows
join nights_on(null::date, nights := $nights) as came using (workload, night)
where workload = $workload and (rows.decision is not null or incumbent_stays)
qualify row_number() over (
    partition by night
    order by incumbent_stays desc, list_position(['promote', 'pass', 'hold'], rows.decision) nulls last, setting, rank
) = 1
order by night desc
"""

_LAYERS = """
with studied as (
    select recipe, max((night, run_id)) as newest
    from layers
    where workload = $workload and sensitivity_rank is not null
    group by recipe
)
select recipe, night, module, type, sensitivity_rank as rank, sqnr_db, quantized, reason
from layers join studied using (recipe)
where workload = $workload and (night, run_id) = newest and sensitivity_rank is not null
-- Each candidate of a recipe repeats the recipe's sensitivity.
qualify row_number() over (partition by recipe, module order by quantized desc, runtime) = 1
order by recipe, rank
"""

_COVERAGE = """
select recipe, runtime, count(*) as modules, count(*) filter (where quantized) as quantized
from layers
where workload = $workload and run_id = (select arg_max(run_id, (night, run_id)) from layers where workload = $workload)
group by recipe, runtime
order by recipe, runtime
"""

_PARTS = {
    "layers": _LAYERS,
    "coverage": _COVERAGE,
    "executed": "select * from executed where workload = $workload",
}


@dataclass(frozen=True)
class Current:
    """A workload's current bundle, its latest switch, and the outcomes of the gate's rules."""

    version: str
    candidate: str
    size_bytes: int | None
    switch: Switch
    rules: tuple[Row, ...]
    recipe: Row


@dataclass(frozen=True)
class Story:
    """Details of a workload; ``nights`` begins with the latest night, and ``layers`` contains rows of layer studies."""

    workload: str
    current: Current | None
    nights: tuple[Row, ...] = ()
    layers: tuple[Row, ...] = ()
    coverage: tuple[Row, ...] = ()
    executed: tuple[Row, ...] = ()


@click.command()
@workload_argument
@click.option(
    "--nights", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="Show the last N nights."
)
@format_option("text", "json")
@store_option
def command(workload: str, nights: int, format: str, store: str) -> None:
    """Show WORKLOAD's current bundle, recent nights, layers and recipe.

    \b
    Example:
      nightquant show word-lm --nights 30
    """
    result = story(store, workload, nights)
    if format == "json":
        print_json(result)
        return
    console = Console()
    for title, lines in _sections(result, store).items():
        console.print()
        console.print(title, style="bold", highlight=False)
        for line in lines:
            console.print(line, highlight=False)


def _sections(content: Story, store: str) -> dict[str, Iterator[object]]:
    sections = {f"{content.workload}: current bundle": _bundle(content.current)}
    sections[f"Nights (quality: {metric_of(content.nights)})"] = _nights(content.nights)
    sections["Layers"] = _layers(content, store)
    if any(number(row, "int8_time_share") or row["doubts"] or _unknown_reason(row) for row in content.executed):
        sections["Executed"] = _executed(content.executed)
    if content.current:
        sections["Recipe"] = _recipe(content.current.recipe)
    return sections


def _bundle(current: Current | None) -> Iterator[object]:
    if current is None:
        yield Text("  none: no candidate has been promoted yet")
        return
    switch = current.switch
    table = plain_table("", "")
    table.row("  candidate", f"{current.candidate}, {size(current.size_bytes)}")
    table.row("  version", current.version)
    table.row("  since", f"{moment(switch.at)}, {switch.action} by {switch.by}")
    table.row("  why", switch.reason)
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
        numbers = ("faster", "quality", "smaller")
        table = plain_table("  night", *numbers, "decision", "bundle", right=numbers)
        for row in rows:
            change, smaller = signed(number(row, "quality_difference")), ratio(number(row, "size_ratio"))
            version = row["bundle_version"] or MISSING
            table.row(f"  {row['night']}", faster(row), change, smaller, became(row), version)
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
    """Show the share of operator time spent in int8 and the instructions of each candidate, then all warnings."""
    table = plain_table("  candidate", "int8", "instructions", right=("int8",))
    warnings: list[str] = []
    for row in executed:
        if share := number(row, "int8_time_share"):
            table.row(f"  {_candidate(row)}", f"{share:.0%}", row["instructions"] or MISSING)
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


def story(place: str, workload: str, nights: int) -> Story:
    """Return a workload's current bundle, layers, executed operators, and last `nights` nights."""
    root = StoreRoot.of(place)
    bundles = BundleStore(root)
    known = set(bundles.workloads())
    rows: dict[str, tuple[Row, ...]] = {}
    if has_results(root):
        with open_catalog(root) as connection:
            known |= {str(row["workload"]) for row in rows_of(connection, "select distinct workload from measurements")}
            rows = {part: tuple(rows_of(connection, query, workload=workload)) for part, query in _PARTS.items()}
            rows["nights"] = tuple(rows_of(connection, _HISTORY, workload=workload, nights=nights))
    if workload not in known:
        raise ConfigurationError(
            f'The store {root.url} does not contain the workload "{workload}".',
            hint=f"Workloads in the store: {', '.join(sorted(known)) or 'none; run nightquant nightly first'}.",
        )
    return Story(workload, _current(bundles, workload), **rows)


def _current(bundles: BundleStore, workload: str) -> Current | None:
    pointer = bundles.pointer(workload)
    if pointer is None:
        return None
    folder = bundles.local_folder(workload, pointer.version)
    check_sums(folder)
    manifest = read_manifest(folder)
    recipe, runtime = manifest["recipe"], manifest["model"]["runtime"]
    digest = manifest["sources"]["quantized"]
    sizes = [row.get("size_bytes") for row in manifest["measurements"] if row.get("artifact_digest") == digest]
    return Current(
        version=pointer.version,
        candidate=f"{recipe['name']}/{runtime}",
        size_bytes=next(iter(sizes), None),
        switch=pointer.history[-1],
        rules=tuple(manifest["gate"]["rules"]),
        recipe=recipe,
    )
