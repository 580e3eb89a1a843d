"""Comparison with earlier nights: regressions, missing workloads and nights, and flow runs that died."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows.execution.signals import attempt, reason
from storage.holder import HeldStore
from storage.results.query import open_fresh, rows_of
from storage.results.regressions import NightComparison, compare_night

if TYPE_CHECKING:  # DuckDB's bindings report a leak if a module still refers to their classes at exit
    from duckdb import DuckDBPyConnection


# A flow run that was retried has several rows.
_ENDED = """
select prefect_flow_run_id as id, arg_max(status, finished_at) as status, arg_max(message, finished_at) as message
from runs where prefect_flow_run_id in (select unnest($found)) group by prefect_flow_run_id
"""
_ENDS = {"completed": Completed, "failed": Failed, "cancelled": Cancelled}  # by the status in ``runs``


@dataclass(frozen=True)
class Findings:
    """Findings that an alert reports."""

    comparison: NightComparison = field(default_factory=lambda: NightComparison(()))
    absences: tuple[str, ...] = ()
    troubles: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return one line per failed check."""
        return [f"{action} failed: {why}" for action, why in self.troubles.items()]


def end_dead_runs(held: HeldStore, flow_run_id: str) -> None:
    """Set the state of flow runs that the store records as dead to ``Crashed``; Prefect shows them as running."""
    with get_client(sync_client=True) as client:
        for dead in held.dead:
            try:
                if dead.flow_run_id not in ("", flow_run_id):
                    run = client.read_flow_run(UUID(dead.flow_run_id))
                    if run.state is not None and not run.state.is_final():
                        message = f"The run died: {dead.describe()} no longer has the store locked."
                        crashed: State[None] = Crashed(message=message)
                        client.set_flow_run_state(run.id, crashed, force=True)
            except ObjectNotFound:
                continue
            except (httpx.HTTPError, PrefectException) as error:
                log = logging.getLogger(__name__)
                log.warning("the dead %s could not be set to Crashed: %s", dead.describe(), error)
                continue
            held.forget(dead)


def end_unreported_runs(store: str, flow_run_id: str) -> None:
    """Set the state of flow runs that ended while Prefect's server was unreachable, according to the ``runs`` table.

    The caller has locked the store, so no other run on this store is running. `flow_run_id` is the caller.
    """
    named = FlowFilter.model_validate({"name": {"any_": ["nightly-quantization"]}})
    running = FlowRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING"]}}})
    with get_client(sync_client=True) as client:
        found = {str(run.id) for run in client.read_flow_runs(flow_filter=named, flow_run_filter=running)}
        if not (found := found - {flow_run_id}):
            return
        with open_fresh(store) as results:
            ended = rows_of(results, _ENDED, found=sorted(found))
        for row in ended:
            state: State[None] = _ENDS[str(row["status"])](message=str(row["message"]))
            client.set_flow_run_state(UUID(str(row["id"])), state, force=True)


def look_back(store: str, night: date, workloads: Collection[str], *, is_everything: bool) -> Findings:
    """Compare a night's workloads with earlier nights, and look for missing workloads and nights."""
    troubles: dict[str, str] = {}

    def look(what: str, do: Callable[[], Any]) -> Any:
        outcome = attempt(what, do)
        if isinstance(outcome, Exception):
            troubles[what] = reason(outcome)
            return None
        return outcome

    def look_at_all() -> tuple[NightComparison | None, tuple[str, ...] | None]:
        with open_fresh(store) as results:
            comparison = look("comparing with earlier nights", lambda: _compared(results, night, workloads))
            absences = look("looking for what is missing", lambda: tuple(_absences(results, night, is_everything)))
        return comparison, absences

    comparison, absences = look("reading the results", look_at_all) or (None, None)
    return Findings(comparison or NightComparison(()), absences or (), troubles)


def _compared(results: DuckDBPyConnection, night: date, workloads: Collection[str]) -> NightComparison:
    comparison = compare_night(results, night).of(workloads)
    made = rows_of(results, "select distinct workload, recipe, runtime from trials where origin <> 'written'")
    replaceable = {(row["workload"], row["recipe"], row["runtime"]) for row in made}
    kept = [
        finding
        for finding in comparison.findings
        if finding.kind != "vanished" or (finding.workload, finding.recipe, finding.runtime) not in replaceable
    ]
    return replace(comparison, findings=tuple(kept))


def reported(findings: Findings, recipes: Collection[str]) -> Findings:
    """Return the findings to report; omit vanished candidates if the run was limited to some recipes."""
    relevant = (finding for finding in findings.comparison.findings if finding.kind != "vanished" or not recipes)
    return replace(findings, comparison=replace(findings.comparison, findings=tuple(relevant)))


def _absences(results: DuckDBPyConnection, night: date, is_everything: bool) -> Iterator[str]:
    cursor = results.execute(
        "select distinct night from runs where status <> 'cancelled' and night < $night order by night desc limit 2",
        {"night": night},
    )
    before = [row[0] for row in cursor.fetchall()]
    if before and is_everything:
        gone = rows_of(
            results,
            "select distinct workload from measurements where night = $before except "
            "select workload from measurements where night = $night order by workload",
            before=before[0],
            night=night,
        )
        yield from (f"{row['workload']} was measured on {before[0]}, but not tonight" for row in gone)
    # Report missed nights only if the last two nights were consecutive, because rarely used stores always have gaps.
    if len(before) == 2 and before[0] - before[1] == timedelta(days=1):
        missed = (night - before[0]).days - 1
        first, last = before[0] + timedelta(days=1), night - timedelta(days=1)
        if missed > 0:
            yield f"no run on {first}" if missed == 1 else f"no run on {missed} nights, {first} to {last}"
