"""``nightquant operations``: install and check alerts for runs that fail or never begin."""

# Prefect's server runs the automations, so it sends alerts even if a run's process and worker have died.
from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

import click
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.events.actions import ActionTypes, CallWebhook, SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from flows.execution.server import require_api
from flows.settings import Settings, load_settings
from storage.errors import ConfigurationError

_BLOCK = "nightquant-operations"
_RUNS = {"prefect.resource.id": "prefect.flow-run.*"}
# Only runs of deployments need alerts, because a person who starts a run in a terminal sees the result.
_OF_DEPLOYMENTS = [
    {"prefect.resource.role": "flow", "prefect.resource.name": ["nightly-quantization", "compact-results"]},
    {"prefect.resource.role": "deployment"},
]
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDED = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Regressed", "Crashed", "Cancelled")}
_STARTED = {"prefect.flow-run.Running", *_ENDED}
LIMIT = dt.timedelta(minutes=10)  # a run may be late, or (with a heartbeat every three minutes) silent for this long

Kinds = Mapping[str, tuple[str, EventTrigger]]  # maps an alert's kind to its message and its trigger


@click.group()
def command() -> None:
    """Set up alerts for runs that fail, crash, stop responding, are cancelled, start late or never start.

    Prefect's server sends the alerts to the webhook and the notification block that are specified in the settings.

    \b
    Examples:
      nightquant operations install
      nightquant operations check
    """


@command.command()
def install() -> None:
    """Install or update the automations, and enable disabled automations.

    \b
    Example:
      nightquant operations install
    """
    with _automations() as automations:
        automations.install()
        for name, text in automations.states().items():
            click.echo(f"{name:14}{text}")


@command.command()
@click.pass_context
def check(context: click.Context) -> None:
    """Show each automation as installed, missing, disabled or outdated; exit with code 1 unless all are installed.

    \b
    Example:
      nightquant operations check
    """
    with _automations() as automations:
        states = automations.states()
    for name, text in states.items():
        click.echo(f"{name:14}{text}")
    good = set(states.values()) == {"installed"}
    if not good:
        click.echo("Some alerts will not be sent. Run: nightquant operations install", err=True)
    context.exit(0 if good else 1)


@contextmanager
def _automations() -> Iterator[Automations]:
    require_api("the automations need one")
    with get_client(sync_client=True) as client:
        yield Automations(client, load_settings(), kinds(LIMIT))


def kinds(limit: dt.timedelta) -> Kinds:
    """Return the alerts for deployment runs, keyed by kind; a run may be late or silent for `limit`."""
    minutes = f"{limit.total_seconds() / 60:.3g} min"
    return {
        "failed": ("failed", _reactive("Failed")),
        "crashed": ("crashed", _reactive("Crashed")),
        "cancelled": ("was cancelled", _reactive("Cancelled")),
        "late": (f"is late: no worker started it within {minutes}", _absence("Late", _STARTED, limit)),
        "never-started": (
            f"never started: a worker took it, but it was not running {minutes} later",
            _absence("Pending", _STARTED, limit),
        ),
        "silent": (f"sent no heartbeat for {minutes}", _absence("heartbeat", {_HEARTBEAT, *_ENDED}, limit)),
    }


def _reactive(state: str) -> EventTrigger:
    return EventTrigger(expect={f"prefect.flow-run.{state}"}, match=_RUNS, match_related=_OF_DEPLOYMENTS)


def _absence(after: str, expected: set[str], within: dt.timedelta) -> EventTrigger:
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
    """The automations on one server, with the webhook and the notification block that are specified in the settings."""

    def __init__(self, client: SyncPrefectClient, settings: Settings, alerts: Kinds) -> None:
        self._client, self._url, self._alerts = client, settings.webhook_url.get_secret_value(), alerts
        self._slug = settings.notification_block
        if not (self._url or self._slug):
            raise ConfigurationError(
                "The settings do not name a receiver for alerts.",
                hint="Set NIGHTQUANT_WEBHOOK_URL, or set NIGHTQUANT_NOTIFICATION_BLOCK to a Prefect block.",
            )

    def install(self) -> None:
        """Create missing automations, and recreate disabled and outdated automations."""
        if self._saved_url() != self._url:
            webhook = Webhook(url=self._url, headers={"Content-Type": "application/json"})
            webhook.save(_BLOCK, overwrite=True)
        for _, expected, existing in self._automations(self._targets()):
            if _state(existing, expected) == "installed":
                continue
            # Do not update automations in place: the server rejects updates from the client, because the updates lack
            # the trigger's default values.
            for automation in existing:
                self._client.delete_automation(automation.id)
            self._client.create_automation(expected)

    def states(self) -> dict[str, str]:
        """Return each automation's state, keyed by kind."""
        targets = self._targets() if self._saved_url() == self._url else []
        return {name: _state(existing, expected) for name, expected, existing in self._automations(targets)}

    def _automations(self, targets: list[tuple[UUID, str]]) -> Iterator[tuple[str, AutomationCore, list[Automation]]]:
        for name, (says, trigger) in self._alerts.items():
            expected = _automation(name, says, trigger, targets)
            yield name, expected, self._client.read_automations_by_name(expected.name)

    def _saved_url(self) -> str:
        """Return the webhook URL saved on the server, or ``""`` if no URL is configured or saved."""
        if not self._url:
            return ""
        try:
            document = self._client.read_block_document_by_name(_BLOCK, "webhook")
        except ObjectNotFound:
            return ""
        return str(document.data.get("url", ""))

    def _targets(self) -> list[tuple[UUID, str]]:
        """Return the ids and types of the webhook and notification blocks to call."""
        targets = []
        for slug in filter(None, (f"webhook/{_BLOCK}" if self._url else "", self._slug)):
            kind, _, name = slug.partition("/")
            try:
                targets.append((self._client.read_block_document_by_name(name, kind).id, kind))
            except ObjectNotFound as error:
                raise ConfigurationError(
                    f'Prefect\'s server has no block "{slug}".',
                    hint="Set NIGHTQUANT_NOTIFICATION_BLOCK to an existing block, written as TYPE/NAME. To list the "
                    "blocks, run: prefect block ls",
                ) from error
        return targets


def _automation(name: str, says: str, trigger: EventTrigger, targets: list[tuple[UUID, str]]) -> AutomationCore:
    message = (
        "{{ event.resource['prefect.resource.name'] }} "
        + says
        + "{% if event.resource['prefect.state-message'] %}: {{ event.resource['prefect.state-message'] }}{% endif %}"
    )
    # The payload begins with an event and a message, like the payload of a regression alert (`flows.findings`).
    payload = (
        f'{{% set message %}}{message}{{% endset %}}{{"event": "nightquant.night", "kind": "{name}", '
        '"message": {{ message|string|tojson }}, "flow_run": {{ event.resource["prefect.resource.id"]|tojson }}, '
        '"occurred": {{ event.occurred|string|tojson }}}'
    )
    actions: list[ActionTypes] = [
        CallWebhook(block_document_id=block, payload=payload)
        if type_slug == "webhook"
        else SendNotification(block_document_id=block, subject=f"nightquant: {name}", body=message)
        for block, type_slug in targets
    ]
    return AutomationCore(
        name=f"nightquant: {name}",
        description="Created by nightquant operations install.",
        enabled=True,
        trigger=trigger,
        actions=actions,
    )


def _state(existing: list[Automation], expected: AutomationCore) -> str:
    if not existing:
        return "missing"
    compared = {"trigger", "actions"}
    # Two automations with the same name would send every alert twice.
    if len(existing) > 1 or existing[0].model_dump(include=compared) != expected.model_dump(include=compared):
        return "outdated"
    return "installed" if existing[0].enabled else "disabled"
