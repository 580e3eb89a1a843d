"""Look back from a night: what changed against earlier nights, what is missing, and what could not be looked at."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING

from flows.attempt import attempt, reason
from storage.results.query import open_fresh, rows_of
from storage.results.regressions import NightComparison, compare_night

if TYPE_CHECKING:  # a module that holds the class at exit makes DuckDB's bindings report all of it as leaked
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class Findings:
    """What an alarm reports.

    Attributes
    ----------
    absences
        Workloads that are gone and nights that were missed, a line each.
    troubles
        Parts of the look back that failed, with the reason: nothing is known about these.
    """

    comparison: NightComparison = field(default_factory=lambda: NightComparison(()))
    absences: tuple[str, ...] = ()
    troubles: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the troubles, a line each."""
        return [f"{what} failed: {why}" for what, why in self.troubles.items()]


def look_back(store: str, night: date, workloads: Collection[str], *, is_everything: bool) -> Findings:
    """Compare a night's workloads with earlier nights, and look for what is missing.

    Results are read from the files themselves, so that all that was recorded counts, whatever the catalog holds. A part
    that fails becomes a trouble and takes nothing else with it.

    Parameters
    ----------
    is_everything
        Whether the run was asked for every workload and recipe, so that others are missing if they are not there.
    """
    compared: NightComparison | Exception = NightComparison(())
    absences: list[str] | Exception = []

    def look() -> None:
        nonlocal compared, absences
        with open_fresh(store) as results:
            compared = attempt("comparing with earlier nights", lambda: compare_night(results, night).of(workloads))
            absences = attempt("looking for what is missing", lambda: _absences(results, night, is_everything))

    unread = attempt("reading the results", look)
    outcomes = {
        "reading the results": unread,
        "comparing with earlier nights": compared,
        "looking for what is missing": absences,
    }
    return Findings(
        NightComparison(()) if isinstance(compared, Exception) else compared,
        () if isinstance(absences, Exception) else tuple(absences),
        {what: reason(found) for what, found in outcomes.items() if isinstance(found, Exception)},
    )


def reported(findings: Findings, recipes: Collection[str]) -> Findings:
    """Return what a run reports: if it was asked for some recipes, the others have not vanished."""
    kept = (each for each in findings.comparison.findings if each.kind != "vanished" or not recipes)
    return replace(findings, comparison=replace(findings.comparison, findings=tuple(kept)))


def missed_nights(results: DuckDBPyConnection, night: date) -> list[str]:
    """Return one line if nights are missing between a night and the run before it.

    That is so if the two runs before the gap were on consecutive nights: a store that is used now and then has no
    rhythm to break.
    """
    before = _nights_before(results, night)
    if len(before) < 2 or before[0] - before[1] != timedelta(days=1):
        return []
    missed = (night - before[0]).days - 1
    first, last = before[0] + timedelta(days=1), night - timedelta(days=1)
    if missed < 1:
        return []
    return [f"no run on {first}" if missed == 1 else f"no run on {missed} nights, {first} to {last}"]


def gone_workloads(results: DuckDBPyConnection, night: date) -> list[str]:
    """Return one line for each workload that was measured on the night before, but not on this one."""
    before = _nights_before(results, night)
    if not before:
        return []
    rows = rows_of(
        results,
        "select distinct workload from measurements where night = $before except "
        "select workload from measurements where night = $night order by workload",
        before=before[0],
        night=night,
    )
    return [f"{row['workload']} was measured on {before[0]}, but not tonight" for row in rows]


def _absences(results: DuckDBPyConnection, night: date, is_everything: bool) -> list[str]:
    return (gone_workloads(results, night) if is_everything else []) + missed_nights(results, night)


def _nights_before(results: DuckDBPyConnection, night: date) -> list[date]:
    """Return the last two nights before one, the later one first."""
    found = results.execute(
        "select distinct night from runs where status <> 'cancelled' and night < $night order by night desc limit 2",
        {"night": night},
    )
    return [row[0] for row in found.fetchall()]
