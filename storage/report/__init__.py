"""Write a night's report as one self-contained HTML file."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import duckdb
import jinja2

from storage import humanize
from storage.errors import ConfigurationError
from storage.report.night import (
    candidates_of,
    history_of,
    marks_of,
    outcomes_of,
    shown_of,
)
from storage.results import Row
from storage.results.query import open_catalog, rows_of
from storage.results.regressions import Regression, compare_night
from storage.root import StoreRoot

_FILTERS = (
    "size", "duration", "ratio", "difference", "quality_unit", "number", "percent", "change", "moment",
    "metric", "name", "plural",
)  # fmt: skip


def write_report(
    root: StoreRoot | Path | str, night: dt.date | None, target: Path, *, unrecorded: Row | None = None
) -> dt.date:
    """Write a night's report (default: the latest night); `unrecorded` is a run's row that is not yet in the store."""
    with open_catalog(root) as connection:
        night = _find_night(connection, night)
        page = _render(connection, night, [unrecorded] if unrecorded else [])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"The report {target} cannot be written: {error.strerror}.", hint="Choose another file with -o."
        ) from error
    return night


def _find_night(connection: duckdb.DuckDBPyConnection, night: dt.date | None) -> dt.date:
    rows = connection.execute("select distinct night from measurements order by night").fetchall()
    nights: list[dt.date] = [row[0] for row in rows]
    if not nights:
        raise ConfigurationError("The store has no measurements yet.", hint="Run nightquant nightly first.")
    if night is not None and night not in nights:
        raise ConfigurationError(
            f"The store has no results for the night {night}.",
            hint=f"Choose a night with results; the first is {nights[0]}, and the last is {nights[-1]}.",
        )
    return night or nights[-1]


def _render(connection: duckdb.DuckDBPyConnection, night: dt.date, unrecorded: Sequence[Row]) -> str:
    """Render the page as HTML without scripts or network access; all text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("storage.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update({name: getattr(humanize, name) for name in _FILTERS})
    runs = [*rows_of(connection, "from runs where night = $night order by started_at", night=night), *unrecorded]
    candidates = candidates_of(connection, night)
    outcomes = outcomes_of(connection, night)
    comparison = compare_night(connection, night)
    return environment.get_template("report.html.j2").render(
        night=night,
        runs=runs,
        versions=json.loads(str(runs[-1]["versions"] or "{}")) if runs else {},
        workloads=[
            _section(connection, night, name, rows, outcomes[name], comparison.findings)
            for name, rows in candidates.items()
        ],
        comparison=comparison,
        failures=_failures(candidates),
        has_pictures=_can_draw(),
    )


def _section(
    connection: duckdb.DuckDBPyConnection,
    night: dt.date,
    name: str,
    rows: list[Row],
    outcome: Row,
    findings: Iterable[Regression],
) -> dict[str, object]:
    history = history_of(connection, name, night, (finding for finding in findings if finding.workload == name))
    marks = marks_of([*(str(row["name"]) for row in rows), *history.rows])
    names = [str(row["name"]) for row in rows]
    # The current bundle has its own row unless it is identical to a candidate.
    own = (str(row["name"]) for row in rows if row["setting"] == "current" and outcome["outcome"] == "kept")
    current = next(own, str(outcome["candidate"] or ""))
    shown, plot = shown_of(history, names), ""
    if _can_draw():
        from storage.report.plots import history_plot  # matplotlib is optional

        plot = history_plot(f"{name}: speed-up over the nights", history, shown, marks)
    return {
        "name": name,
        "outcome": outcome,
        "current": current,  # name of the row for the bundle that is current after the night, or ``""``
        "rows": rows,
        "marks": marks,
        "history": history,
        "shown": shown,
        "plot": plot,
    }


def _can_draw() -> bool:
    return find_spec("matplotlib") is not None


def _failures(candidates: dict[str, list[Row]]) -> dict[tuple[str, str, str], list[str]]:
    failures: dict[tuple[str, str, str], list[str]] = {}
    for workload, rows in candidates.items():
        for row in rows:
            if row["status"] == "failed":
                error = str(row["error"] or "no reason was recorded")
                key = (workload, str(row["stage"] or humanize.MISSING), error)
                failures.setdefault(key, []).append(str(row["name"]))
    return failures
