"""Overview of one workload: the current bundle, past nights, layers and recipe."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from flows.overview import has_results
from storage.bundles import BundleStore
from storage.errors import ConfigurationError
from storage.pointer import Switch
from storage.results import Row
from storage.results.query import open_catalog, rows_of
from storage.root import StoreRoot
from storage.seal import check_sums, read_manifest

# If the current bundle was not replaced, the night's row describes that bundle. If no bundle stayed current, the
# night's row describes the candidate with the best decision and rank. The row of a bundle that stayed current contains
# measurements of the bundle's own files or of an identical candidate.
_HISTORY = """
select workload, night, rows.run_id, recipe, runtime, rows.candidate, status, speedup, speedup_low, speedup_high,
    caches, cold_speedup, cold_speedup_low, cold_speedup_high,
    deciding_speedup, deciding_speedup_low, deciding_speedup_high, size_bytes, size_ratio,
    quality_metric, quality_difference, quality_difference_low, quality_difference_high,
    came.outcome = 'kept' and (setting = 'incumbent' or rows.candidate = came.candidate) as incumbent_stays,
    case when incumbent_stays then 'promote' else decision end as decision,
    case when incumbent_stays then 'stays' else became end as became,
    came.version as bundle_version,
    case when incumbent_stays then came.why else rows.why end as reason
from (select * exclude (incumbent_stays) from outcomes_on(null::date, nights := $nights)) as rows
join nights_on(null::date, nights := $nights) as came using (workload, night)
where ($workload is null or workload = $workload) and (rows.decision is not null or incumbent_stays)
qualify row_number() over (
    partition by workload, night
    order by incumbent_stays desc, list_position(['promote', 'pass', 'hold'], rows.decision) nulls last, setting, rank
) = 1
order by workload, night desc
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
    """A workload's current bundle, its latest switch, and the gate's decision and rules from the manifest."""

    version: str
    candidate: str
    size_bytes: int | None
    switch: Switch
    decision: Row
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


@dataclass(frozen=True)
class Outline:
    """One-line summary of a workload; ``last`` is the last night's row."""

    workload: str
    version: str | None
    since: dt.datetime | None
    last: Row | None


def outlines(place: str) -> list[Outline]:
    """Return the current bundle and the latest night of every workload that has a bundle or results."""
    root = StoreRoot.of(place)
    bundles = BundleStore(root)
    last: dict[str, Row] = {}
    if has_results(root):
        with open_catalog(root) as connection:
            last = {str(row["workload"]): row for row in rows_of(connection, _HISTORY, workload=None, nights=1)}
    pointers = {name: bundles.pointer(name) for name in bundles.workloads()}
    result = []
    for name in sorted(last.keys() | pointers.keys()):
        pointer = pointers.get(name)
        version, since = (pointer.version, pointer.history[-1].at) if pointer else (None, None)
        result.append(Outline(name, version, since, last.get(name)))
    return result


def story(place: str, workload: str, nights: int) -> Story:
    """Return a workload's current bundle, layers and executed operators, and the results of the last `nights` nights.

    Raises
    ------
    ConfigurationError
        The store does not contain the workload.
    BundleError
        The current bundle does not match its checksums.
    """
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
    manifest = read_manifest(folder, check_sums(folder))
    gate, recipe, runtime = dict(manifest["gate"]), manifest["recipe"], manifest["model"]["runtime"]
    rules = tuple(gate.pop("rules"))
    digest = manifest["sources"]["quantized"]
    sizes = [row.get("size_bytes") for row in manifest["measurements"] if row.get("artifact_digest") == digest]
    return Current(
        version=pointer.version,
        candidate=f"{recipe['name']}/{runtime}",
        size_bytes=next(iter(sizes), None),
        switch=pointer.history[-1],
        decision=gate,
        rules=rules,
        recipe=recipe,
    )
