"""The night's report: one HTML file that needs nothing else."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path

import duckdb
import jinja2

from storage.errors import ConfigurationError
from storage.report.plots import candidate, pareto_plot, signs_of, trend_plot
from storage.results import Row
from storage.results.query import open_catalog
from storage.results.regressions import compare_night
from storage.root import StoreRoot

_TREND_NIGHTS = 30
MISSING = "–"


@dataclass(frozen=True)
class _Section:
    """One workload's leaderboard, and its plots as SVG; "" for one that has nothing to show."""

    name: str
    leaderboard: list[Row]
    pareto: str
    trend: str


def write_report(root: StoreRoot | Path | str, night: dt.date | None, target: Path) -> dt.date:
    """Write the report of a night (the newest by default) to a file; return the night."""
    with open_catalog(root) as connection:
        night = _find_night(connection, night)
        page = _render(connection, night)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"The report {target} cannot be written: {error.strerror}.", hint="Choose another place with -o."
        ) from error
    return night


def _find_night(connection: duckdb.DuckDBPyConnection, night: dt.date | None) -> dt.date:
    found = connection.execute("select distinct night from measurements order by night").fetchall()
    nights: list[dt.date] = [row[0] for row in found]
    if not nights:
        raise ConfigurationError("The store holds no measurements.", hint="Run a night first: nightquant nightly.")
    if night is not None and night not in nights:
        raise ConfigurationError(
            f"There are no results of the night {night}.",
            hint=f"The store has nights from {nights[0]} to {nights[-1]}.",
        )
    return night or nights[-1]


def _render(connection: duckdb.DuckDBPyConnection, night: dt.date) -> str:
    """Render the page as HTML: no script, no network, every text escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("storage.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update({show.__name__: show for show in (size, duration, ratio, number, time, metric)})
    runs = _rows(connection, "from runs where night = ? order by started_at", night)
    return environment.get_template("report.html.j2").render(
        night=night,
        runs=runs,
        versions=json.loads(str(runs[-1]["versions"] or "{}")) if runs else {},
        workloads=_sections(connection, night),
        comparison=compare_night(connection, night),
        failures=_rows(connection, "from failures where night = ? order by workload, recipe, runtime", night),
    )


def _sections(connection: duckdb.DuckDBPyConnection, night: dt.date) -> list[_Section]:
    sections = []
    leaderboards = _rows(connection, "from leaderboard_on(?)", night)
    for name in sorted({str(row["workload"]) for row in leaderboards}):
        leaderboard = [row for row in leaderboards if row["workload"] == name]
        pareto = {candidate(row) for row in _rows(connection, "from pareto_on(?) where workload = ?", night, name)}
        trend = _rows(connection, _TREND, name, night, name, night, _TREND_NIGHTS)
        signs = signs_of([*leaderboard, *trend])
        sections.append(
            _Section(
                name,
                leaderboard,
                pareto_plot(leaderboard, pareto, signs, f"{name}: size and speed-up"),
                trend_plot(trend, signs, f"{name}: speed-up over the nights"),
            )
        )
    return sections


# Only that night's machines: another one's ratios are another history.
_TREND = """
select recipe, runtime, night, speedup, speedup_low, speedup_high
from trend
where workload = ? and night <= ? and speedup is not null
    and machine in (select coalesce(machine, fingerprint) from measurements where workload = ? and night = ?)
qualify dense_rank() over (order by night desc) <= ?
    and row_number() over (partition by recipe, runtime, night order by measured_at desc) = 1
order by recipe, runtime, night
"""


def _rows(connection: duckdb.DuckDBPyConnection, sql: str, *parameters: dt.date | str | int) -> list[Row]:
    cursor = connection.execute(sql, parameters)
    names = [column[0] for column in cursor.description or []]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def size(value: float | None) -> str:
    """Bytes in a decimal unit, to three digits."""
    return _scaled(value, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)), "B")


def duration(value: float | None) -> str:
    """Seconds in a fitting unit, to three digits."""
    nanoseconds = None if value is None else value * 1e9
    return _scaled(nanoseconds, (("s", 1e9), ("ms", 1e6), ("µs", 1e3)), "ns")


def ratio(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A ratio with a times sign, and its interval if there is one."""
    if value is None:
        return MISSING
    interval = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return f"{value:.2f}×{interval}"


def number(value: float | None, spec: str = ".4g") -> str:
    """A number in a format of Python's; four significant digits by default."""
    return MISSING if value is None else format(value, spec)


def time(value: dt.datetime | None) -> str:
    """A time in UTC, to the minute."""
    return MISSING if value is None else f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"


def metric(value: float | None, name: str) -> str:
    """A number in the unit of the metric `name`."""
    return {"size_bytes": size, "speedup": ratio}.get(name, number)(value)


def _scaled(value: float | None, units: tuple[tuple[str, float], ...], smallest: str) -> str:
    if value is None:
        return MISSING
    for unit, scale in units:
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} {smallest}"
