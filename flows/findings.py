"""Comparison with earlier nights, the alert about the findings, and the states of flow runs that died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import httpx
from prefect.artifacts import create_link_artifact
from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows.execution.signals import attempt, interruption_behind, reason
from flows.settings import Settings
from storage.errors import ConfigurationError
from storage.holder import HeldStore
from storage.results.query import open_catalog, rows_of
from storage.results.regressions import NightComparison, compare_night

if TYPE_CHECKING:  # DuckDB's bindings report a leak if a module still refers to their classes at exit
    from duckdb import DuckDBPyConnection

R = TypeVar("R")
EVENT = "nightquant.regression"
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
    """Set flow runs that the store records as dead, but that have not ended in Prefect, to ``Crashed``."""
    with get_client(sync_client=True) as client:
        for dead in held.dead:
            try:
                if dead.flow_run_id not in ("", flow_run_id):
                    run = client.read_flow_run(UUID(dead.flow_run_id))
                    if run.state is not None and not run.state.is_final():
                        message = f"The run died: {dead.describe()} no longer has the store locked."
                        client.set_flow_run_state(run.id, Crashed(message=message), force=True)
                held.forget(dead)
            except (httpx.HTTPError, PrefectException) as error:  # another server may know the run
                logging.getLogger(__name__).warning("%s could not be set to Crashed: %s", dead.describe(), error)


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
        with open_catalog(store, fresh=True) as results:
            ended = rows_of(results, _ENDED, found=sorted(found))
        for row in ended:
            state: State[None] = _ENDS[str(row["status"])](message=str(row["message"]))
            client.set_flow_run_state(UUID(str(row["id"])), state, force=True)


def look_back(store: str, night: date, workloads: Collection[str], *, is_everything: bool) -> Findings:
    """Compare a night's workloads with earlier nights, and look for missing workloads and nights."""
    troubles: dict[str, str] = {}

    def look(what: str, do: Callable[[], R], default: R) -> R:
        outcome = attempt(what, do)
        if isinstance(outcome, Exception):
            troubles[what] = reason(outcome)
            return default
        return outcome

    def look_at_all() -> Findings:
        with open_catalog(store, fresh=True) as results:
            what = "comparing with earlier nights"
            compared = look(what, lambda: _compared(results, night, workloads), nothing.comparison)
            what = "looking for what is missing"
            return Findings(compared, look(what, lambda: _absences(results, night, is_everything), nothing.absences))

    nothing = Findings()
    return replace(look("reading the results", look_at_all, nothing), troubles=troubles)


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


def _absences(results: DuckDBPyConnection, night: date, is_everything: bool) -> tuple[str, ...]:
    query = "select distinct night from runs where status <> 'cancelled' and night < $night order by night desc limit 2"
    before: list[date] = [row[0] for row in results.execute(query, {"night": night}).fetchall()]
    absences = []
    if before and is_everything:
        gone = rows_of(
            results,
            "select distinct workload from measurements where night = $before except "
            "select workload from measurements where night = $night order by workload",
            before=before[0],
            night=night,
        )
        absences = [f"{row['workload']} was measured on {before[0]}, but not tonight" for row in gone]
    # Report missed nights only if the last two nights were consecutive, because rarely used stores always have gaps.
    if len(before) == 2 and before[0] - before[1] == timedelta(days=1):
        missed = (night - before[0]).days - 1
        first, last = before[0] + timedelta(days=1), night - timedelta(days=1)
        if missed > 0:
            absences.append(f"no run on {first}" if missed == 1 else f"no run on {missed} nights, {first} to {last}")
    return tuple(absences)


def raise_alarm(findings: Findings, settings: Settings) -> tuple[str, dict[str, str]]:
    """Send the alert; return a one-line summary, and the reasons of the notifications that failed."""
    bad = any(finding.is_bad for finding in findings.comparison.findings)
    failed = _notify(settings, findings) if bad or findings.absences or findings.troubles else {}
    # Omit `troubles`, because the run's message already lists the failed checks.
    return summary_line(replace(findings, troubles={})), failed


def summary_line(findings: Findings) -> str:
    """Describe findings in one line: name each regression, and count the other findings."""
    comparison = findings.comparison
    bad = [finding.describe() for finding in comparison.findings if finding.is_bad]
    unknown = len(comparison.incomparable)
    parts = [f"{len(bad)} regression{'s' if len(bad) > 1 else ''}: {', '.join(bad)}"] if bad else []
    if not bad and not comparison.compared:
        parts = ["not comparable with earlier nights"]
    else:
        parts += [] if bad else ["no regression"]
        parts += [f"{unknown} of {unknown + len(comparison.compared)} numbers not comparable"] if unknown else []
    for kind in ("improved", "appeared"):
        count = sum(finding.kind == kind for finding in comparison.findings)
        parts += [f"{count} {kind}"] if count else []
    return "; ".join([*parts, *findings.absences, *findings.lines()])


def link_report(report: str) -> None:
    """Add a link to the report to the current flow run."""
    try:
        create_link_artifact(report, link_text=report, key="report", description="The night's report, one HTML file")
    except (httpx.HTTPError, PrefectException) as error:
        # nightquant reports an unreachable server at the end of the run.
        logging.getLogger(__name__).warning("no link to the report in Prefect's UI: %s", error)


def _notify(settings: Settings, findings: Findings) -> dict[str, str]:
    """Call the configured webhook and notification block, and return the reason for each failure."""
    message = summary_line(findings)
    bad = [finding for finding in findings.comparison.findings if finding.is_bad]
    regressions = [asdict(finding) | {"since": finding.since and finding.since.isoformat()} for finding in bad]
    payload = {"event": EVENT, "message": message, "regressions": regressions}
    payload |= {"absences": list(findings.absences), "troubles": findings.lines()}
    slug, url = settings.notification_block, settings.webhook_url
    calls: dict[str, Callable[[], object]] = {}
    # The webhook comes first because it does not need Prefect's server.
    if url.get_secret_value():
        calls["webhook"] = lambda: _post(Webhook(url=url), payload)
    if slug:
        lines = [*(finding.describe() for finding in bad), *findings.absences, *findings.lines()]
        body = "\n".join(f"- {line}" for line in lines)
        calls[f"notification block {slug}"] = lambda: _call_block(slug, body, message, payload)
    failed = {}
    for name, call in calls.items():
        try:
            call()
        except httpx.HTTPStatusError as error:
            failed[name] = f"answered {error.response.status_code}"
        except ConfigurationError as error:
            failed[name] = reason(error)
        except Exception as error:
            if interruption_behind(error) is not None:
                raise
            failed[name] = type(error).__name__  # the error's text may contain the URL, which is a secret
    return failed


def _call_block(slug: str, body: str, subject: str, payload: Mapping[str, object]) -> None:
    try:
        block = Block.load(slug)  # outside an event loop, `Block.load` is synchronous
    except ValueError as error:
        hint = "Set NIGHTQUANT_NOTIFICATION_BLOCK to one of the blocks that this command lists: prefect block ls"
        raise ConfigurationError(f'Prefect\'s server has no valid block "{slug}".', hint=hint) from error
    if isinstance(block, NotificationBlock):
        block.notify(body, subject)  # type: ignore[unused-coroutine]
    elif isinstance(block, Webhook):
        _post(block, payload)
    else:
        raise ConfigurationError(f'The block "{slug}" is neither a notification block nor a webhook block.')


def _post(webhook: Webhook, payload: Mapping[str, object]) -> None:
    asyncio.run(webhook.call(dict(payload))).raise_for_status()
