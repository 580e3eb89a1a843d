"""The alarm: what a night's comparison with its history found becomes events, artifacts and notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import date, timedelta
from typing import cast

import httpx
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.blocks.abstract import NotificationBlock, NotificationError
from prefect.blocks.core import Block
from prefect.blocks.webhook import Webhook
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from prefect.exceptions import PrefectException

from flows.settings import Settings
from storage.results.query import run_query
from storage.results.regressions import NightComparison, Regression

EVENT = "nightquant.regression"


def raise_alarm(
    comparison: NightComparison, settings: Settings, *, absences: Sequence[str] = (), run_id: str = ""
) -> str:
    """Report what was found; called at the end of the flow, so that artifacts belong to its run.

    Each regression becomes a Prefect event, on which automations can act. All findings, improvements and absences
    included, become a markdown and a table artifact. On a regression or an absence, the notification block and the
    webhook of the settings are called; one that fails is named in the message and stops nothing.

    Parameters
    ----------
    comparison
        What `storage.results.regressions.compare_night` found.
    absences
        What `missed_nights` and `gone_workloads` found.

    Returns
    -------
    str
        What happened, in one line.
    """
    findings = comparison.findings
    bad = [finding for finding in findings if finding.is_bad]
    message = summary_line(comparison, absences)
    for finding in bad:
        _emit(finding, run_id)
    if bad:
        # A thread sends the events. The nightly command stops its own server before this process ends, when Prefect's
        # flush at exit would find no server.
        EventsWorker.instance().drain()
    failures = []
    try:
        if findings or absences:
            create_markdown_artifact(_markdown(findings, absences), key="regressions", description=message[:1000])
        if findings:
            rows = [_as_json(finding) for finding in findings]
            create_table_artifact(rows, key="regressions-table", description="Tonight against the nights before")
    except (httpx.HTTPError, PrefectException) as error:  # whoever is to be told is told all the same
        failures.append(f"no artifact in Prefect's UI: {type(error).__name__}")
    failures += _notify(settings, message, findings, absences) if bad or absences else []
    return "; ".join([message, *failures])


def missed_nights(store: str, night: date) -> list[str]:
    """Return one line if nights are missing between a night and the run before it.

    That is so if the two runs before the gap were on consecutive nights: a store that is used now and then has no
    rhythm to break.
    """
    before = _nights_before(store, night)
    if len(before) < 2 or before[0] - before[1] != timedelta(days=1):
        return []
    missed = (night - before[0]).days - 1
    first, last = before[0] + timedelta(days=1), night - timedelta(days=1)
    if missed < 1:
        return []
    return [f"no run on {first}" if missed == 1 else f"no run on {missed} nights, {first} to {last}"]


def gone_workloads(store: str, night: date) -> list[str]:
    """Return one line for each workload that was measured on the night before, but not on this one."""
    before = _nights_before(store, night)
    if not before:
        return []
    rows = run_query(
        store,
        f"select distinct workload from measurements where night = date '{before[0].isoformat()}' except "
        f"select workload from measurements where night = date '{night.isoformat()}' order by workload",
    ).to_pylist()
    return [f"{row['workload']} was measured on {before[0]}, but not tonight" for row in rows]


def _nights_before(store: str, night: date) -> list[date]:
    """Return the last two nights before one, the later one first."""
    rows = run_query(
        store,
        "select distinct night from runs where status <> 'cancelled' "
        f"and night < date '{night.isoformat()}' order by night desc limit 2",
    ).to_pylist()
    return [row["night"] for row in rows]


def summary_line(comparison: NightComparison, absences: Sequence[str] = ()) -> str:
    """Describe the comparison in one line: the regressions themselves, the number of the rest."""
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
    return "; ".join([*parts, *absences])


def _as_json(finding: Regression) -> dict[str, str | float | None]:
    return asdict(finding) | {"since": finding.since and finding.since.isoformat()}


def _emit(finding: Regression, run_id: str) -> None:
    emit_event(
        event=EVENT,
        resource={
            "prefect.resource.id": f"nightquant.workload.{finding.workload}",
            "prefect.resource.name": finding.workload,
            "nightquant.candidate": f"{finding.recipe}/{finding.runtime}",
            "nightquant.kind": finding.kind,
        },
        payload=_as_json(finding) | {"run_id": run_id, "text": finding.describe()},
    )


def _markdown(findings: Sequence[Regression], absences: Sequence[str]) -> str:
    sections = {
        "Regressions": [finding.describe() for finding in findings if finding.is_bad],
        "Missing": list(absences),
        "Improvements without an explanation": [found.describe() for found in findings if found.kind == "improved"],
        "New candidates": [found.describe() for found in findings if found.kind == "appeared"],
    }
    parts = ["# Tonight against the nights before"]
    for title, lines in sections.items():
        if lines:
            parts += [f"## {title}", "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def _notify(settings: Settings, message: str, findings: Sequence[Regression], absences: Sequence[str]) -> list[str]:
    """Call what the settings name; return what failed. A night is not lost because a chat server is."""
    regressions = [_as_json(finding) for finding in findings if finding.is_bad]
    payload = {"event": EVENT, "message": message, "regressions": regressions, "absences": list(absences)}
    slug, url = settings.notification_block, settings.webhook_url
    calls: dict[str, Callable[[], None]] = {}
    if slug:
        body = _markdown(findings, absences)
        calls[f"notification block {slug}"] = lambda: _call_block(slug, body, message, payload)
    if url.get_secret_value():
        calls["webhook"] = lambda: _post(Webhook(url=url), payload)
    return [f"{name} failed: {reason}" for name, call in calls.items() if (reason := _attempt(call))]


def _attempt(call: Callable[[], None]) -> str:
    try:
        call()
    except httpx.HTTPStatusError as error:
        return f"answered {error.response.status_code}"  # its own text holds the URL, which may be a secret
    except (httpx.HTTPError, httpx.InvalidURL, NotificationError, PrefectException, ValueError, OSError) as error:
        return type(error).__name__
    return ""


def _call_block(slug: str, body: str, subject: str, payload: Mapping[str, object]) -> None:
    block = cast(Block, Block.load(slug))  # no coroutine: no event loop runs here
    if isinstance(block, NotificationBlock):
        block.notify(body, subject)  # type: ignore[unused-coroutine]
    elif isinstance(block, Webhook):
        _post(block, payload)
    else:
        raise ValueError(f"{slug} is neither a notification block nor a webhook")


def _post(webhook: Webhook, payload: Mapping[str, object]) -> None:
    response = asyncio.run(webhook.call(dict(payload)))
    response.raise_for_status()
