"""Look back from a night: end the runs of nights that died, compare with earlier ones, and find what is missing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Crashed

from flows.execution.signals import attempt, reason
from storage.holder import HeldStore
from storage.results.query import open_fresh, rows_of
from storage.results.regressions import NightComparison, compare_night

if TYPE_CHECKING:  # a module that holds the class at exit makes DuckDB's bindings report all of it as leaked
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class Findings:
    """What an alarm reports.

    `absences` are workloads that are gone and nights that were missed, a line each. `troubles` are parts of the look
    back that failed, with the reason: nothing is known about these.
    """

    comparison: NightComparison = field(default_factory=lambda: NightComparison(()))
    absences: tuple[str, ...] = ()
    troubles: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the troubles, a line each."""
        return [f"{what} failed: {why}" for what, why in self.troubles.items()]


def end_dead_runs(held: HeldStore, flow_run_id: str) -> None:
    """Set the flow runs of nights that died holding the store to Crashed: Prefect would call them running for ever.

    Only runs that the store's own record names are ended. A run that this server does not know is kept for another
    server, and so is one that could not be set. `flow_run_id` is the run that asks: after a retry it may be recorded as
    dead itself.
    """
    with get_client(sync_client=True) as client:
        for dead in held.dead:
            try:
                if dead.flow_run_id not in ("", flow_run_id):
                    run = client.read_flow_run(UUID(dead.flow_run_id))
                    if run.state is not None and not run.state.is_final():
                        message = f"The night died: {dead.describe()} holds the store no more."
                        crashed: State[None] = Crashed(message=message)
                        client.set_flow_run_state(run.id, crashed, force=True)
            except ObjectNotFound:
                continue
            except (httpx.HTTPError, PrefectException) as error:
                logging.getLogger(__name__).warning("the dead %s could not be ended: %s", dead.describe(), error)
                continue
            held.forget(dead)


def look_back(store: str, night: date, workloads: Collection[str], *, is_everything: bool) -> Findings:
    """Compare a night's workloads with earlier nights, and look for what is missing.

    Results are read from the files themselves, so that all that was recorded counts, whatever the catalog holds. A part
    that fails becomes a trouble and takes nothing else with it.

    Parameters
    ----------
    is_everything
        Whether the run was asked for every workload and recipe, so that others are missing if they are not there.
    """
    found = Findings()

    def look(what: str, do: Callable[[], Findings | None]) -> None:
        nonlocal found
        done = attempt(what, do)
        if isinstance(done, Exception):
            found = replace(found, troubles=found.troubles | {what: reason(done)})
        elif done is not None:
            found = done

    def look_at_all() -> None:
        with open_fresh(store) as results:
            look(
                "comparing with earlier nights",
                lambda: replace(found, comparison=compare_night(results, night).of(workloads)),
            )
            look(
                "looking for what is missing",
                lambda: replace(found, absences=tuple(_absences(results, night, is_everything))),
            )

    look("reading the results", look_at_all)
    return found


def reported(findings: Findings, recipes: Collection[str]) -> Findings:
    """Return what a run reports: if it was asked for some recipes, the others have not vanished."""
    kept = (each for each in findings.comparison.findings if each.kind != "vanished" or not recipes)
    return replace(findings, comparison=replace(findings.comparison, findings=tuple(kept)))


def _absences(results: DuckDBPyConnection, night: date, is_everything: bool) -> Iterator[str]:
    found = results.execute(
        "select distinct night from runs where status <> 'cancelled' and night < $night order by night desc limit 2",
        {"night": night},
    )
    before = [row[0] for row in found.fetchall()]
    if before and is_everything:
        gone = rows_of(
            results,
            "select distinct workload from measurements where night = $before except "
            "select workload from measurements where night = $night order by workload",
            before=before[0],
            night=night,
        )
        yield from (f"{row['workload']} was measured on {before[0]}, but not tonight" for row in gone)
    # A store that is used now and then has no rhythm to break.
    if len(before) == 2 and before[0] - before[1] == timedelta(days=1):
        missed = (night - before[0]).days - 1
        first, last = before[0] + timedelta(days=1), night - timedelta(days=1)
        if missed > 0:
            yield f"no run on {first}" if missed == 1 else f"no run on {missed} nights, {first} to {last}"
