"""Automations of Prefect's server for nights that end badly or do not begin: what is told, to whom, and whether it is.

The server carries them out, whatever became of the night's process and of its worker. A server that is gone tells
nothing: `flows.liveness` is for that.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import ActionTypes, CallWebhook, SendNotification
from prefect.events.filters import EventFilter, EventNameFilter, EventRelatedFilter
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import Event, ReceivedEvent
from prefect.events.utilities import emit_event
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound

from flows.settings import Settings
from storage.errors import ConfigurationError

_TEST = "nightquant.test"
_BLOCK = "nightquant-operations"
_EXECUTED, _FAILED = "prefect.automation.action.executed", "prefect.automation.action.failed"
_RUNS = {"prefect.resource.id": "prefect.flow-run.*"}
# A night that somebody began at a terminal is theirs to watch.
_OF_DEPLOYMENTS = [
    {"prefect.resource.role": "flow", "prefect.resource.name": ["nightly-quantization", "compact-results"]},
    {"prefect.resource.role": "deployment"},
]
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDED = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Regressed", "Crashed", "Cancelled")}
_STARTED = {"prefect.flow-run.Running", *_ENDED}

Standing = Literal["installed", "missing", "disabled", "outdated"]


@dataclass(frozen=True)
class Kind:
    """One thing that is told: its name, how a sentence about the run goes on, and when."""

    name: str
    says: str
    trigger: EventTrigger


def kinds(late_after: timedelta, silent_after: timedelta) -> tuple[Kind, ...]:
    """What is told of runs of deployments; the last is a test.

    Parameters
    ----------
    late_after
        How long a run may be late before that is told, and how long one that a worker took may go without starting.
    silent_after
        How long a run at work may send no heartbeat. Prefect sends one every 180 s
        (``PREFECT_FLOWS_HEARTBEAT_FREQUENCY``).
    """
    late, silent = (f"{each.total_seconds() / 60:.3g} min" for each in (late_after, silent_after))
    return (
        Kind("failed", "failed", _reactive("Failed")),
        Kind("crashed", "crashed", _reactive("Crashed")),
        Kind("cancelled", "was cancelled", _reactive("Cancelled")),
        Kind("late", f"is late: no worker began it within {late}", _absence("Late", _STARTED, late_after)),
        Kind(
            "never-started",
            f"never started: a worker took it, and {late} later it was not at work",
            _absence("Pending", _STARTED, late_after),
        ),
        Kind("silent", f"sent no heartbeat for {silent}", _absence("heartbeat", {_HEARTBEAT, *_ENDED}, silent_after)),
        Kind("test", "is a test", EventTrigger(expect={_TEST})),
    )


def _reactive(state: str) -> EventTrigger:
    return EventTrigger(expect={f"prefect.flow-run.{state}"}, match=_RUNS, match_related=_OF_DEPLOYMENTS)


def _absence(after: str, expected: set[str], within: timedelta) -> EventTrigger:
    return EventTrigger(
        posture=Posture.Proactive,
        after={f"prefect.flow-run.{after}"},
        expect=expected,
        within=within,
        match=_RUNS,
        match_related=_OF_DEPLOYMENTS,
        for_each={"prefect.resource.id"},
    )


class Automations:
    """The automations of one server, with the webhook and the notification block of the settings.

    Raises
    ------
    ConfigurationError
        The settings name neither, or a block that is not there.
    """

    def __init__(self, client: SyncPrefectClient, settings: Settings, told: tuple[Kind, ...]) -> None:
        self._client, self._url, self._told = client, settings.webhook_url.get_secret_value(), told
        self._slug = settings.notification_block
        if not (self._url or self._slug):
            raise ConfigurationError(
                "Nobody is named to be told.",
                hint="Set NIGHTQUANT_WEBHOOK_URL, or NIGHTQUANT_NOTIFICATION_BLOCK to a block of Prefect's.",
            )

    def install(self) -> None:
        """Make each automation, or make it again what it should be; one that is disabled is enabled."""
        if self._url and self._saved_url() != self._url:
            webhook = Webhook(url=self._url, headers={"Content-Type": "application/json"})
            webhook.save(_BLOCK, overwrite=True)
        targets = self._targets()
        for kind in self._told:
            wanted = _automation(kind, targets)
            found = self._client.read_automations_by_name(wanted.name)
            if _standing(found, wanted) == "installed":
                continue
            for each in found:  # the client's own update leaves out what a trigger has by default, and is refused
                self._client.delete_automation(each.id)
            self._client.create_automation(wanted)

    def standings(self) -> dict[str, Standing]:
        """How each automation stands, by the name of its kind; all are outdated where the webhook's address is."""
        moved = self._saved_url() != self._url
        targets = [] if moved else self._targets()
        standings: dict[str, Standing] = {}
        for kind in self._told:
            wanted = _automation(kind, targets)
            found = self._client.read_automations_by_name(wanted.name)
            standings[kind.name] = _standing(found, wanted)
        return standings

    def send_test(self, timeout_s: float) -> list[str]:
        """Have the server tell a test; return what became of each call: ``answered 204``, ``sent``, or what went wrong.

        Parameters
        ----------
        timeout_s
            How long to wait for the server to say that it called, in seconds.
        """
        event = emit_event(_TEST, resource={"prefect.resource.id": _TEST, "prefect.resource.name": "nightquant"})
        if event is None:
            raise ConfigurationError("Prefect's client sends no events.", hint="Unset PREFECT_EVENTS_….")
        EventsWorker.instance().drain()
        calls = len(self._targets())
        deadline = time.monotonic() + timeout_s
        while len(ended := self._calls_for(event)) < calls and time.monotonic() < deadline:
            time.sleep(0.5)
        return [_outcome(each) for each in ended] + ["not called"] * (calls - len(ended))

    def _calls_for(self, event: Event) -> list[ReceivedEvent]:
        """What became of the server's calls for an event, as far as they have ended."""
        ended = EventFilter(
            event=EventNameFilter(name=[_EXECUTED, _FAILED]),
            related=EventRelatedFilter(id=[f"prefect.event.{event.id}"]),
        )
        # The server refuses the client's own limit.
        return self._client.read_events(ended, limit=10).events

    def _saved_url(self) -> str:
        """The address that the server calls; "" if it has none."""
        try:
            document = self._client.read_block_document_by_name(_BLOCK, "webhook")
        except ObjectNotFound:
            return ""
        return str(document.data.get("url", "")) if self._url else ""

    def _targets(self) -> list[tuple[UUID, str]]:
        """The blocks to call, each with its type."""
        slugs = [f"webhook/{_BLOCK}"] if self._url else []
        slugs += [self._slug] if self._slug else []
        targets = []
        for slug in slugs:
            kind, _, name = slug.partition("/")
            try:
                targets.append((self._client.read_block_document_by_name(name, kind).id, kind))
            except ObjectNotFound as error:
                raise ConfigurationError(
                    f'Prefect\'s server has no block "{slug}".', hint="See: prefect block ls."
                ) from error
        return targets


def is_good(outcome: str) -> bool:
    """Whether what `Automations.send_test` returned means that somebody was told."""
    return outcome == "sent" or outcome.startswith("answered 2")


def _outcome(event: ReceivedEvent) -> str:
    if event.event == _FAILED:
        return str(event.payload.get("reason"))
    status = event.payload.get("status_code")
    return "sent" if status is None else f"answered {status}"


def _automation(kind: Kind, targets: list[tuple[UUID, str]]) -> AutomationCore:
    message = (
        "{{ event.resource['prefect.resource.name'] }} "
        + kind.says
        + "{% if event.resource['prefect.state-message'] %}: {{ event.resource['prefect.state-message'] }}{% endif %}"
    )
    # As flows.alarm posts regressions: an event and a message, then what it is about.
    payload = (
        f'{{% set message %}}{message}{{% endset %}}{{"event": "nightquant.night", "kind": "{kind.name}", '
        '"message": {{ message|string|tojson }}, "flow_run": {{ event.resource["prefect.resource.id"]|tojson }}, '
        '"occurred": {{ event.occurred|string|tojson }}}'
    )
    actions: list[ActionTypes] = [
        CallWebhook(block_document_id=block, payload=payload)
        if type_slug == "webhook"
        else SendNotification(block_document_id=block, subject=f"nightquant: {kind.name}", body=message)
        for block, type_slug in targets
    ]
    return AutomationCore(
        name=f"nightquant: {kind.name}",
        description="Made by nightquant operations install.",
        enabled=True,
        trigger=kind.trigger,
        actions=actions,
    )


def _standing(found: list[Automation], wanted: AutomationCore) -> Standing:
    if not found:
        return "missing"
    compared = {"trigger", "actions"}
    # Two of a name would tell everything twice.
    if len(found) > 1 or found[0].model_dump(include=compared) != wanted.model_dump(include=compared):
        return "outdated"
    return "installed" if found[0].enabled else "disabled"
