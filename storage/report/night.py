"""A night as a report shows it: its candidates, each workload's outcome, the gate's bounds and the machine."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb

from storage.humanize import percent
from storage.results import Row, number
from storage.results.query import rows_of

COARSE = 0.05  # an A/A interval that reaches further from 1 is worse than a quiet machine's

_CANDIDATES = """
select *, if(setting = 'incumbent', 'current bundle ', '') || candidate as name,
    internal.instructions_in_words(instructions) as ran_by, internal.dearest_float(float_operators) as dearest_float,
    internal.lines_of(doubts) as doubted
from outcomes_on($night)
order by workload, setting = 'incumbent' desc, rank
"""

_CONDITIONS = """
select *, internal.troubles(waiting, stolen) as troubles
from (select unnest(flatten(list_transform($evidence, lambda each: internal.conditions_in(each))), recursive := true))
"""


@dataclass(frozen=True)
class Condition:
    """The machine during one workload's benchmark; None is what was not recorded.

    ``resolution`` is how far the baseline was off 1 against its own copy, at the far end of the 95% interval; ``load``
    is the load average before; ``waiting`` and ``stolen`` are shares of the benchmark's time. ``undecided`` counts the
    candidates on hold.
    """

    workload: str
    resolution: float | None = None
    load: float | None = None
    processors: int | None = None
    waiting: float | None = None
    stolen: float | None = None
    undecided: int = 0
    troubles: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether anything was recorded that could have been trouble."""
        return any(each is not None for each in (self.resolution, self.waiting, self.stolen))


def candidates_of(connection: duckdb.DuckDBPyConnection, night: dt.date) -> dict[str, list[Row]]:
    """Return a night's rows of ``outcomes`` by workload, the best candidate first, each with a ``name``."""
    found: dict[str, list[Row]] = {}
    for row in rows_of(connection, _CANDIDATES, night=night):
        found.setdefault(str(row["workload"]), []).append(row)
    return found


def outcomes_of(connection: duckdb.DuckDBPyConnection, night: dt.date) -> dict[str, Row]:
    """Return a night's rows of ``nights`` by workload."""
    return {str(row["workload"]): row for row in rows_of(connection, "from nights_on($night)", night=night)}


def bounds_of(rows: Sequence[Row]) -> dict[str, float]:
    """Return the gate's bounds by rule; the bound on quality is in the metric's own unit."""
    bounds: dict[str, float] = {}
    for row in rows:
        for rule in json.loads(str(row["rules"] or "[]")):
            if isinstance(rule["bound"], int | float):
                is_share = rule["name"] == "max_quality_drop" and str(rule.get("note", "")).startswith("share of")
                scale = abs(number(row, "baseline_quality") or 0.0) if is_share else 1.0
                bounds.setdefault(str(rule["name"]), rule["bound"] * scale)
    return bounds


def conditions_of(
    connection: duckdb.DuckDBPyConnection, runs: Sequence[Row], candidates: Mapping[str, Sequence[Row]]
) -> list[Condition]:
    """Return the machine's state during each workload's last benchmark of the night."""
    evidence = [str(run["evidence"] or "[]") for run in runs]
    seen = {str(row["workload"]): row for row in rows_of(connection, _CONDITIONS, evidence=evidence)}
    return [_condition(name, rows, seen.get(name, {})) for name, rows in candidates.items()]


def _condition(workload: str, rows: Sequence[Row], seen: Row) -> Condition:
    resolution = max((found for row in rows if (found := number(row, "resolution")) is not None), default=None)
    load, waiting, stolen = (number(seen, name) for name in ("load", "waiting", "stolen"))
    processors = number(seen, "processors")
    sentences = {
        "waiting": f"tasks waited for a processor in {percent(waiting)} of the time",
        "stolen": f"{percent(stolen)} of the processors' time went to other machines on the host",
    }
    troubles = [f"the same model against itself was up to {percent(resolution)} off"]
    troubles = troubles if resolution is not None and resolution > COARSE else []
    named: object = seen.get("troubles")
    troubles += [sentences[name] for name in named] if isinstance(named, list) else []
    return Condition(
        workload,
        resolution,
        load,
        None if processors is None else int(processors),
        waiting,
        stolen,
        undecided=sum(row["became"] == "hold" for row in rows),
        troubles=tuple(troubles),
    )
