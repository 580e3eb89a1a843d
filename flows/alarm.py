"""Alerts and artifacts of a run: notifications, Prefect events, and tables in Prefect's UI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import cast

import httpx
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block
from prefect.blocks.webhook import Webhook
from prefect.exceptions import PrefectException
from pydantic import ValidationError

from flows.execution.signals import interruption_behind
from flows.findings import Findings
from flows.settings import Settings
from storage.errors import ConfigurationError, NightquantError
from storage.results.regressions import Regression

EVENT = "nightquant.regression"


@dataclass(frozen=True)
class Raised:
    """One-line summary of an alert; ``failed`` maps each failed notification to the reason for the failure."""

    message: str
    failed: dict[str, str] = field(default_factory=dict)


def raise_alarm(findings: Findings, settings: Settings) -> Raised:
    """Report findings from within the flow, so that the artifacts belong to the flow run."""
    changes = findings.comparison.findings
    bad = [finding for finding in changes if finding.is_bad]
    message = summary_line(findings)
    failed = _notify(settings, message, findings) if bad or findings.absences or findings.troubles else {}
    # Omit `troubles`, because the run's message already lists the failed checks.
    parts = [summary_line(replace(findings, troubles={}))]
    if changes or findings.absences:
        page = partial(create_markdown_artifact, _markdown(findings), key="regressions", description=message[:1000])
        if why := _attempt(page):
            parts.append(f"no artifact in Prefect's UI: {why}")
    return Raised("; ".join(parts), failed)


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


def _as_json(finding: Regression) -> dict[str, str | float | None]:
    return asdict(finding) | {"since": finding.since and finding.since.isoformat()}


def _markdown(findings: Findings) -> str:
    changes = findings.comparison.findings
    sections = {
        "Regressions": [finding.describe() for finding in changes if finding.is_bad],
        "Missing": findings.absences,
        "Not checked": findings.lines(),
        "Improvements without an explanation": [change.describe() for change in changes if change.kind == "improved"],
        "New candidates": [change.describe() for change in changes if change.kind == "appeared"],
    }
    parts = ["# Tonight compared with earlier nights\n"]
    for title, lines in sections.items():
        if lines:
            parts += [f"## {title}\n", *(f"- {line}" for line in lines), ""]
    return "\n".join(parts)


def _notify(settings: Settings, message: str, findings: Findings) -> dict[str, str]:
    """Call the configured webhook and notification block, and return the reason for each failure."""
    regressions = [_as_json(finding) for finding in findings.comparison.findings if finding.is_bad]
    payload = {"event": EVENT, "message": message, "regressions": regressions}
    payload |= {"absences": list(findings.absences), "troubles": findings.lines()}
    slug, url = settings.notification_block, settings.webhook_url
    calls: dict[str, Callable[[], object]] = {}
    # The webhook comes first because it does not need Prefect's server.
    if url.get_secret_value():
        calls["webhook"] = lambda: _post(Webhook(url=url), payload)
    if slug:
        calls[f"notification block {slug}"] = lambda: _call_block(slug, _markdown(findings), message, payload)
    return {name: why for name, call in calls.items() if (why := _attempt(call))}


def _attempt(call: Callable[[], object]) -> str:
    """Return the reason that a call failed, or ``""`` if the call succeeded."""
    try:
        call()
    except httpx.HTTPStatusError as error:
        return f"answered {error.response.status_code}"
    except NightquantError as error:
        return str(error).rstrip(".")
    except Exception as error:
        if interruption_behind(error) is not None:
            raise
        return type(error).__name__
    return ""


def _call_block(slug: str, body: str, subject: str, payload: Mapping[str, object]) -> None:
    try:
        block = cast(Block, Block.load(slug))  # outside an event loop, `Block.load` is synchronous
    except ValidationError as error:
        wrong = f'The block "{slug}" cannot be loaded: {error.error_count()} of its values are invalid'
        raise ConfigurationError(wrong) from error
    except ValueError as error:
        raise ConfigurationError(
            f'Prefect\'s server has no block "{slug}".',
            hint="Set NIGHTQUANT_NOTIFICATION_BLOCK to an existing block, written as TYPE/NAME. To list the blocks, "
            "run: prefect block ls",
        ) from error
    if isinstance(block, NotificationBlock):
        block.notify(body, subject)  # type: ignore[unused-coroutine]
    elif isinstance(block, Webhook):
        _post(block, payload)
    else:
        raise ConfigurationError(
            f'The block "{slug}" is neither a notification block nor a webhook block.',
            hint="Set NIGHTQUANT_NOTIFICATION_BLOCK to a block of either type.",
        )


def _post(webhook: Webhook, payload: Mapping[str, object]) -> None:
    response = asyncio.run(webhook.call(dict(payload)))
    response.raise_for_status()
