"""What a report says, read from the catalog in a few queries."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import Any

import duckdb

from storage.errors import ConfigurationError
from storage.results.regressions import Regression, find_regressions

Row = dict[str, Any]
TREND_NIGHTS = 30


@dataclass(frozen=True)
class WorkloadFacts:
    """One workload's leaderboard, the Pareto-optimal candidates (``recipe/runtime``) and the nights up to this one."""

    name: str
    leaderboard: tuple[Row, ...]
    pareto: frozenset[str]
    trend: tuple[Row, ...]


@dataclass(frozen=True)
class Facts:
    """All that a report of one night says."""

    night: dt.date
    runs: tuple[Row, ...]
    workloads: tuple[WorkloadFacts, ...]
    regressions: tuple[Regression, ...]
    failures: tuple[Row, ...]

    @property
    def versions(self) -> dict[str, str]:
        """Library versions of the night's last run."""
        return json.loads(self.runs[-1]["versions"] or "{}") if self.runs else {}


def gather(connection: duckdb.DuckDBPyConnection, night: dt.date | None) -> Facts:
    """Read one night's facts; the newest night where none is named.

    Raises
    ------
    ConfigurationError
        There are no results of that night.
    """
    newest = connection.execute("select max(night), min(night) from measurements").fetchone()
    last, first = newest if newest is not None else (None, None)
    chosen = night or last
    if chosen is None:
        raise ConfigurationError("The store holds no measurements.", hint="Run a night first: nightquant nightly.")
    present = connection.execute("select count(*) from measurements where night = ?", [chosen]).fetchone()
    if not present or not present[0]:
        raise ConfigurationError(
            f"There are no results of the night {chosen}.", hint=f"The store has nights from {first} to {last}."
        )
    leaderboard = _rows(connection, f"from leaderboard_on(date '{chosen}')")
    pareto = _rows(connection, f"select workload, recipe, runtime from pareto_on(date '{chosen}')")
    trend = _rows(connection, _TREND, [chosen, chosen, TREND_NIGHTS])
    names = sorted({row["workload"] for row in leaderboard})
    return Facts(
        night=chosen,
        runs=tuple(_rows(connection, "from runs where night = ? order by started_at", [chosen])),
        workloads=tuple(
            WorkloadFacts(
                name,
                tuple(row for row in leaderboard if row["workload"] == name),
                frozenset(candidate(row) for row in pareto if row["workload"] == name),
                tuple(row for row in trend if row["workload"] == name),
            )
            for name in names
        ),
        regressions=tuple(find_regressions(connection, chosen)),
        failures=tuple(_rows(connection, "from failures where night = ? order by workload, recipe, runtime", [chosen])),
    )


def candidate(row: Row) -> str:
    """A row's candidate as ``recipe/runtime``."""
    return f"{row['recipe']}/{row['runtime']}"


# Only the hosts of that night: another machine's ratios are another history.
_TREND = """
select workload, recipe, runtime, night, speedup, speedup_low, speedup_high, verdict
from trend
where night <= ? and speedup is not null
    and (workload, fingerprint) in (select (workload, fingerprint) from measurements where night = ?)
qualify dense_rank() over (partition by workload order by night desc) <= ?
    and row_number() over (partition by workload, recipe, runtime, night order by measured_at desc) = 1
order by workload, recipe, runtime, night
"""


def _rows(connection: duckdb.DuckDBPyConnection, sql: str, parameters: list[Any] | None = None) -> list[Row]:
    cursor = connection.execute(sql, parameters or [])
    names = [column[0] for column in cursor.description or []]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
