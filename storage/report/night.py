"""What a report tells of a night: its candidates with their decisions, and what became of each workload."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import ge
from typing import Literal

import duckdb

from storage.results import Row, number
from storage.results.query import rows_of

Status = Literal["promoted", "kept", "held", "nothing passed", "not judged"]

# The last measurement of each candidate, and of the current bundle where it is none of them, with what was decided on
# it: what may be promoted first, by the gate's objective.
_CANDIDATES = """
with newest as (
    select * from measurements
    where night = $night and setting in ('primary', 'incumbent')
    qualify row_number() over (
        partition by workload, recipe, runtime, setting order by measured_at desc, run_id desc, attempt desc
    ) = 1
)
select
    newest.*, decided.decision, decided.reason, decided.objective, decided.rules,
    if(setting = 'incumbent', 'current bundle ', '') || newest.recipe || '/' || newest.runtime as name,
    coalesce(
        if(caches = 'cold', cold_speedup, speedup), case when is_baseline and status = 'ok' then 1.0 end
    ) as shown_speedup,
    if(caches = 'cold', cold_speedup_low, speedup_low) as shown_speedup_low,
    if(caches = 'cold', cold_speedup_high, speedup_high) as shown_speedup_high,
    internal.instructions_in_words(instructions) as ran_by, internal.dearest_float(float_operators) as dearest_float,
    internal.lines_of(doubts) as doubted
from newest
left join promotions as decided
    on setting = 'primary' and decided.run_id = newest.run_id and decided.workload = newest.workload
    and decided.recipe = newest.recipe and decided.runtime = newest.runtime
order by newest.workload, setting = 'incumbent' desc,
    list_position(['promote', 'pass', 'hold', 'reject'], decided.decision) nulls last, status = 'failed',
    case when objective = 'smallest' then size_ratio else shown_speedup end desc nulls last,
    newest.recipe, newest.runtime
"""

# What the last run of the night decided, the promotion first.
_DECIDED = """
select decided.*,
    exists (from promotions as earlier where earlier.workload = decided.workload and earlier.night < decided.night
        and earlier.bundle_version = decided.bundle_version) as was_current
from promotions as decided
where night = $night
qualify run_id = last_value(run_id) over (
    partition by workload order by decided_at, run_id rows between unbounded preceding and unbounded following
)
order by workload, decision = 'promote' desc, recipe, runtime
"""

_BUNDLES = """
select bundle_version, min(night) as since, arg_min(recipe || '/' || runtime, night) as name,
    arg_min(artifact_digest, night) as artifact_digest
from promotions where bundle_version is not null and night <= $night group by bundle_version
"""


@dataclass(frozen=True)
class Outcome:
    """What became of a workload.

    ``candidate`` and ``version`` are those of the bundle that is current after the night, "" where there is none;
    ``since`` is the night that it was promoted on. ``held`` are the candidates whose rules could not be decided, with
    the reason; ``warning`` is "" or why somebody should look.
    """

    status: Status
    reason: str
    candidate: str = ""
    version: str = ""
    since: dt.date | None = None
    replaced: str = ""
    held: tuple[tuple[str, str], ...] = ()
    warning: str = ""


def candidates_of(connection: duckdb.DuckDBPyConnection, night: dt.date) -> dict[str, list[Row]]:
    """The candidates of a night by workload, the best first; ``name`` is ``recipe/runtime``."""
    found: dict[str, list[Row]] = {}
    for row in rows_of(connection, _CANDIDATES, night=night):
        found.setdefault(str(row["workload"]), []).append(row)
    return found


def outcomes_of(
    connection: duckdb.DuckDBPyConnection, night: dt.date, candidates: dict[str, list[Row]]
) -> dict[str, Outcome]:
    """What became of each workload of a night."""
    decided: dict[str, list[Row]] = {}
    for row in rows_of(connection, _DECIDED, night=night):
        decided.setdefault(str(row["workload"]), []).append(row)
    bundles = {str(row["bundle_version"]): row for row in rows_of(connection, _BUNDLES, night=night)}
    return {name: _outcome(decided.get(name, []), bundles, rows) for name, rows in candidates.items()}


def bounds_of(rows: Sequence[Row]) -> dict[str, float]:
    """The gate's bounds by the rule's name; that of the quality in the metric's own unit."""
    bounds: dict[str, float] = {}
    for row in rows:
        for rule in json.loads(str(row["rules"] or "[]")):
            if isinstance(rule["bound"], int | float):
                is_share = rule["name"] == "max_quality_drop" and str(rule.get("note", "")).startswith("share of")
                scale = abs(number(row, "baseline_quality") or 0.0) if is_share else 1.0
                bounds.setdefault(str(rule["name"]), rule["bound"] * scale)
    return bounds


def unbeaten(rows: Sequence[Row]) -> list[str]:
    """Names of the candidates that no other one beats in size, speed-up and quality at once."""
    points: dict[str, tuple[float, float, float]] = {}
    for row in rows:
        size, speed, quality = (number(row, name) for name in ("size_bytes", "shown_speedup", "quality"))
        if row["status"] == "ok" and size is not None and speed is not None and quality is not None:
            points[str(row["name"])] = (-size, speed, quality if row["higher_is_better"] else -quality)
    return [
        name
        for name, mine in points.items()
        if not any(other != mine and all(map(ge, other, mine)) for other in points.values())
    ]


def _outcome(decided: list[Row], bundles: dict[str, Row], candidates: list[Row]) -> Outcome:
    if not decided:
        return Outcome("not judged", "the gate was not asked")
    first = decided[0]
    held = tuple(
        (f"{row['recipe']}/{row['runtime']}", str(row["reason"])) for row in decided if row["decision"] == "hold"
    )
    before = str(first["incumbent_version"] or "")
    is_promoted, is_made = first["decision"] == "promote", first["bundle_version"] is not None
    # Rows of earlier versions do not say whether the current bundle stays.
    stays = first["was_current"] if first["incumbent_stays"] is None else first["incumbent_stays"]
    if is_promoted and not stays:
        name = f"{first['recipe']}/{first['runtime']}"
        warning = "" if is_made else "No bundle of it was handed over: the run's message says why."
        version = str(first["bundle_version"] or "")
        since = first["night"] if isinstance(first["night"], dt.date) else None
        return Outcome("promoted", str(first["reason"]), name, version, since, before, held, warning)
    if before or is_promoted:
        version = before or str(first["bundle_version"])
        made = bundles.get(version)
        reason = str(first["incumbent_reason"] or first["reason"])
        unknown = "Nobody knows tonight whether it is still good." if reason.startswith("it is unknown") else ""
        if made is None:
            return Outcome("kept", reason, version=version, held=held, warning=unknown)
        tonight = [row for row in candidates if row["artifact_digest"] == made["artifact_digest"] is not None]
        fails = any(row["decision"] == "reject" or row["status"] == "failed" for row in tonight)
        rejected = "The gate rejects it tonight, and nothing can replace it." if fails else ""
        since = made["since"] if isinstance(made["since"], dt.date) else None
        return Outcome("kept", reason, str(made["name"]), version, since, held=held, warning=unknown or rejected)
    if first["incumbent_reason"]:
        reason = f"which bundle is current could not be looked up: {first['incumbent_reason']}"
        return Outcome("held" if held else "nothing passed", reason, held=held, warning="Look at current.json.")
    if held:
        return Outcome("held", "no candidate could be promoted yet, and none was current before", held=held)
    return Outcome("nothing passed", "no candidate passes the gate, and none was current before")
