"""The alarm: what a night's comparison with its history found becomes events, artifacts and notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flows.settings import Settings
from storage.results.regressions import Regression

if TYPE_CHECKING:
    from prefect.blocks.core import Block

EVENT = "nightquant.regression"
ARTIFACT = "regressions"


def raise_alarm(
    findings: Sequence[Regression], settings: Settings, *, absences: Sequence[str] = (), run_id: str = ""
) -> str:
    """Tell of what was found; called at the end of the flow, so that artifacts belong to its run.

    Each regression becomes a Prefect event, on which automations can act. All findings, improvements and absences
    included, become a markdown and a table artifact. Where there is a regression or an absence, the notification block
    and the webhook of the settings are called; one that fails is told of in the message and stops nothing.

    Parameters
    ----------
    findings
        What `storage.results.regressions.find_regressions` gave.
    absences
        What `flows.absences` found.

    Returns
    -------
    str
        What happened, in one line.
    """
    bad = [finding for finding in findings if finding.is_bad]
    message = summary_line(findings, absences)
    for finding in bad:
        _emit(finding, run_id)
    if findings or absences:
        _write_artifacts(findings, absences, message)
    if bad:
        _flush_events()
    failures = _notify(settings, message, findings, absences) if bad or absences else []
    return "; ".join([message, *failures])


def summary_line(findings: Sequence[Regression], absences: Sequence[str] = ()) -> str:
    """All findings in one line: the regressions themselves, the number of the rest."""
    bad = [describe(finding) for finding in findings if finding.is_bad]
    parts = [f"{len(bad)} regression{'s' if len(bad) > 1 else ''}: {', '.join(bad)}"] if bad else ["no regression"]
    for kind in ("improved", "appeared"):
        count = sum(finding.kind == kind for finding in findings)
        parts += [f"{count} {kind}"] if count else []
    return "; ".join([*parts, *absences])


def describe(finding: Regression) -> str:
    """One finding in a few words, with its numbers."""
    text = f"{finding.workload} {finding.recipe}/{finding.runtime} {finding.kind}"
    if finding.tonight is None or finding.reference is None:
        return text
    interval = ""
    if finding.tonight_low is not None and finding.tonight_high not in (None, finding.tonight_low):
        interval = f" ({finding.tonight_low:.4g} to {finding.tonight_high:.4g})"
    change = f", {finding.change:+.1%}" if finding.change is not None else ""
    was = f"was {finding.reference:.4g} over {finding.nights} nights"
    return f"{text}: {finding.metric} {finding.tonight:.4g}{interval}, {was}{change}"


def _emit(finding: Regression, run_id: str) -> None:
    from prefect.events import emit_event

    emit_event(
        event=EVENT,
        resource={
            "prefect.resource.id": f"nightquant.workload.{finding.workload}",
            "prefect.resource.name": finding.workload,
            "nightquant.candidate": f"{finding.recipe}/{finding.runtime}",
            "nightquant.kind": finding.kind,
        },
        payload=asdict(finding) | {"run_id": run_id, "text": describe(finding)},
    )


def _flush_events() -> None:
    # Events are sent by a thread. The nightly command stops its own server before this process ends, and Prefect's
    # flush at exit would then find nobody to send them to.
    from prefect.events.worker import EventsWorker

    EventsWorker.instance().drain()


def _write_artifacts(findings: Sequence[Regression], absences: Sequence[str], message: str) -> None:
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    create_markdown_artifact(_markdown(findings, absences), key=ARTIFACT, description=message[:1000])
    rows: list[dict[str, Any]] = [asdict(finding) for finding in findings]
    if rows:
        create_table_artifact(rows, key=f"{ARTIFACT}-table", description="Tonight against the nights before")


def _markdown(findings: Sequence[Regression], absences: Sequence[str]) -> str:
    sections = {
        "Regressions": [describe(one) for one in findings if one.is_bad],
        "Missing": list(absences),
        "Improvements without an explanation": [describe(one) for one in findings if one.kind == "improved"],
        "New candidates": [describe(one) for one in findings if one.kind == "appeared"],
    }
    parts = ["# Tonight against the nights before"]
    for title, lines in sections.items():
        if lines:
            parts += [f"## {title}", "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def _notify(settings: Settings, message: str, findings: Sequence[Regression], absences: Sequence[str]) -> list[str]:
    """Call what the settings name; give what failed. A night is not lost because a chat server is."""
    url = settings.webhook_url.get_secret_value()
    payload = {
        "event": EVENT,
        "message": message,
        "regressions": [asdict(one) for one in findings if one.is_bad],
        "absences": list(absences),
    }
    calls: dict[str, Callable[[], None]] = {}
    if settings.notification_block:
        calls[f"notification block {settings.notification_block}"] = lambda: _call_block(
            settings.notification_block, _markdown(findings, absences), message, payload
        )
    if url:
        calls["webhook"] = lambda: _post(url, payload)
    return [f"{name} failed: {reason}" for name, call in calls.items() if (reason := _attempt(call))]


def _attempt(call: Callable[[], None]) -> str:
    import httpx
    from prefect.blocks.abstract import NotificationError
    from prefect.exceptions import PrefectException

    try:
        call()
    except httpx.HTTPStatusError as error:
        return f"answered {error.response.status_code}"  # its own text holds the URL, which may be a secret
    except (httpx.HTTPError, httpx.InvalidURL, NotificationError, PrefectException, ValueError, OSError) as error:
        return type(error).__name__
    return ""


def _call_block(slug: str, body: str, subject: str, payload: dict[str, Any]) -> None:
    from prefect.blocks.abstract import NotificationBlock
    from prefect.blocks.core import Block
    from prefect.blocks.webhook import Webhook

    block: Block = Block.load(slug)  # type: ignore[assignment]
    if isinstance(block, NotificationBlock):
        block.notify(body, subject)  # type: ignore[unused-coroutine]
    elif isinstance(block, Webhook):
        asyncio.run(_call(block, payload))
    else:
        raise ValueError(f"{slug} is neither a notification block nor a webhook")


def _post(url: str, payload: dict[str, Any]) -> None:
    from prefect.blocks.webhook import Webhook
    from pydantic import SecretStr

    asyncio.run(_call(Webhook(url=SecretStr(url)), payload))


async def _call(webhook: Any, payload: dict[str, Any]) -> None:
    response = await webhook.call(payload)
    response.raise_for_status()
