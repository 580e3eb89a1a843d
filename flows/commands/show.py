"""``nightquant show``: the current bundle, past nights and layers of one workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from flows.commands import store_flag, store_option, workload_argument
from flows.commands.status import has_results
from flows.console import became, faster, marked_lines, metric_of, plain_table, signed
from storage.bundles import BundleStore
from storage.errors import ConfigurationError
from storage.humanize import MISSING, moment, ratio, size
from storage.pointer import Switch
from storage.results import Row, candidate_of, number
from storage.results.query import open_catalog, rows_of
from storage.root import StoreRoot
from storage.seal import check_sums, read_manifest
from tasks.workload.rules import RULES

_SHOWN_LAYERS = 5

# If the current bundle was not replaced, the night's row describes that bundle. If no bundle stayed current, the
# night's row describes the candidate with the best decision and rank. The row of a bundle that stayed current contains
# measurements of the bundle's own files or of an identical candidate.
_HISTORY = """
select rows.* exclude (became), came.version as bundle_version,
    came.outcome = 'kept' and (setting = 'current' or rows.candidate = came.candidate) as current_stays,
    case when current_stays then 'stays' else rows.became end as became,
    case when current_stays then came.why else rows.why end as reason
from (select * exclude (current_stays) from outcomes_on(null::date, nights := $nights)) as rows
join nights_on(null::date, nights := $nights) as came using (workload, night)
where workload = $workload and (rows.decision is not null or current_stays)
qualify row_number() over (
    partition by night
    order by current_stays desc, list_position(['promote', 'pass', 'hold'], rows.decision) nulls last, setting, rank
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

_PARTS = {"layers": _LAYERS, "coverage": _COVERAGE}


@click.command()
@workload_argument
@click.option(
    "--nights", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="Show the last N nights."
)
@store_option
def command(workload: str, nights: int, store: str) -> None:
    """Show WORKLOAD's current bundle, recent nights and layers.

    \b
    Example:
      nightquant show word-lm --nights 30
    """
    rows = workload_history(store, workload, nights)
    bundles = BundleStore(store)
    pointer = bundles.pointer(workload)
    sections: dict[str, Iterator[object]] = {
        f"Nights (quality: {metric_of(rows['nights'])})": _nights(rows["nights"]),
        "Layers": _layers(rows, f"nightquant sensitivity --workload {workload}{store_flag(store)}"),
    }
    bundle: Iterator[object] = iter([Text("  none: no candidate has been promoted yet")])
    if pointer is not None:
        folder = bundles.local_folder(workload, pointer.version)
        check_sums(folder)
        bundle = _bundle(read_manifest(folder), pointer.history[-1])
    console = Console()
    for title, lines in ({f"{workload}: current bundle": bundle} | sections).items():
        console.print()
        console.print(title, style="bold", highlight=False)
        for line in lines:
            console.print(line, highlight=False)


def workload_history(place: str, workload: str, nights: int) -> dict[str, list[Row]]:
    """Return a workload's layers, coverage, and last `nights` nights, latest first."""
    root = StoreRoot.of(place)
    known = set(BundleStore(root).workloads())
    rows: dict[str, list[Row]] = {part: [] for part in (*_PARTS, "nights")}
    if has_results(root):
        with open_catalog(root) as connection:
            known |= {str(row["workload"]) for row in rows_of(connection, "select distinct workload from measurements")}
            rows = {part: rows_of(connection, query, workload=workload) for part, query in _PARTS.items()}
            rows["nights"] = rows_of(connection, _HISTORY, workload=workload, nights=nights)
    if workload not in known:
        raise ConfigurationError(
            f'The store {root.url} does not contain the workload "{workload}".',
            hint=f"Workloads in the store: {', '.join(sorted(known)) or 'none; run nightquant nightly first'}.",
        )
    return rows


def _bundle(manifest: Mapping[str, Any], switch: Switch) -> Iterator[object]:
    digest = manifest["sources"]["quantized"]
    sizes = [row.get("size_bytes") for row in manifest["measurements"] if row.get("artifact_digest") == digest]
    table = plain_table("", "")
    candidate = f"{manifest['recipe']['name']}/{manifest['model']['runtime']}"
    table.row("  candidate", f"{candidate}, {size(next(iter(sizes), None))}")
    table.row("  version", switch.version)
    table.row("  since", f"{moment(switch.at)}, {switch.action} by {switch.by}")
    table.row("  why", switch.reason)
    for rule in manifest["gate"]["rules"]:
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
    for name, rows in groupby(nights, key=candidate_of):
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


def _layers(rows: Mapping[str, Sequence[Row]], study: str) -> Iterator[object]:
    for row in rows["coverage"]:
        if row["quantized"]:
            yield Text(f"  {candidate_of(row)}: {row['quantized']} of {row['modules']} modules quantized")
    for recipe, layers in groupby(rows["layers"], key=lambda row: row["recipe"]):
        table = plain_table(f"  most sensitive with {recipe}", "type", "SQNR (dB)", right=("SQNR (dB)",))
        for row in list(layers)[:_SHOWN_LAYERS]:
            sqnr_db = number(row, "sqnr_db")
            noise = MISSING if sqnr_db is None else f"{sqnr_db:.1f}"
            table.row(f"  {row['module']}", row["type"], noise)
        yield table
    if not rows["layers"]:
        yield Text(f"  no study yet; run: {study}")
