"""``nightquant operations``: install and test alerts for runs that fail or never begin.

Prefect's server runs the automations, so it sends alerts even if a run's process and worker have died. If the server
itself has died, no alert is sent; ``nightquant status --max-age`` then reports that the last good night is too old.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

import click
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.events.actions import ActionTypes, CallWebhook, SendNotification
from prefect.events.filters import EventFilter, EventNameFilter, EventRelatedFilter
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import Event, ReceivedEvent
from prefect.events.utilities import emit_event
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound

from flows.commands import Function, age_option, format_option, print_result
from flows.execution.server import require_api
from flows.settings import Settings, load_settings
from storage.errors import ConfigurationError

_ANSWER_S = 60.0
_TEST = "nightquant.test"
_BLOCK = "nightquant-operations"
_EXECUTED, _FAILED = "prefect.automation.action.executed", "prefect.automation.action.failed"
_RUNS = {"prefect.resource.id": "prefect.flow-run.*"}
# Only runs of deployments need alerts, because a person who starts a run in a terminal sees the result.
_OF_DEPLOYMENTS = [
    {"prefect.resource.role": "flow", "prefect.resource.name": ["nightly-quantization", "compact-results"]},
    {"prefect.resource.role": "deployment"},
]
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDED = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Regressed", "Crashed", "Cancelled")}
_STARTED = {"prefect.flow-run.Running", *_ENDED}

Kinds = Mapping[str, tuple[str, EventTrigger]]  # maps an alert's kind to its message and its trigger


@click.group()
def command() -> None:
    """Set up alerts for runs that fail, crash, stop responding, are cancelled, start late or never start.

    Prefect's server sends the alerts to the webhook and the notification block that are specified in the settings.

    \b
    Examples:
      nightquant operations install
      nightquant operations check --send
    """


def _when(function: Function) -> Function:
    late = age_option(
        "--late-after",
        default="10m",
        help="Report a run that stays in the Late or Pending state for this long.",
    )
    silent = age_option(
        "--silent-after", default="10m", help="Report a run that has not sent a heartbeat for this long."
    )
    return late(silent(function))


@command.command()
@_when
@format_option("text", "json")
def install(late_after: dt.timedelta, silent_after: dt.timedelta, format: str) -> None:
    """Install or update the automations, and enable disabled automations.

    \b
    Example:
      nightquant operations install --late-after 30m
    """
    with _automations(late_after, silent_after) as automations:
        automations.install()
        _show(automations.standings(), [], format)


@command.command()
@click.option("--send", is_flag=True, help="Ask the server to send a test alert, and print each receiver's response.")
@_when
@format_option("text", "json")
@click.pass_context
def check(
    context: click.Context, send: bool, late_after: dt.timedelta, silent_after: dt.timedelta, format: str
) -> None:
    """Show each automation as installed, missing, disabled or outdated; exit with code 1 unless all are installed.

    With --send, the exit code is also 1 if the test alert cannot be sent. Pass the same --late-after and
    --silent-after values that you passed to `operations install`.

    \b
    Example:
      nightquant operations check --send
    """
    with _automations(late_after, silent_after) as automations:
        standings = automations.standings()
        calls = automations.send_test(_ANSWER_S) if send and standings["test"] == "installed" else []
    _show(standings, calls, format)
    answered = all(call == "sent" or call.startswith("answered 2") for call in calls)
    good = set(standings.values()) == {"installed"} and answered
    if not good:
        click.echo(
            "Some alerts will not be sent. If a test alert was not delivered, check its receiver. To repair the "
            "automations, run: nightquant operations install",
            err=True,
        )
    context.exit(0 if good else 1)


def _show(standings: Mapping[str, str], calls: Sequence[str], format: str) -> None:
    lines = (f"{name:14}{text}" for name, text in [*standings.items(), *(("call", call) for call in calls)])
    print_result(format, {"automations": standings, "calls": calls}, lines)


@contextmanager
def _automations(late_after: dt.timedelta, silent_after: dt.timedelta) -> Iterator[Automations]:
    require_api("a server must store the automations")
    with get_client(sync_client=True) as client:
        yield Automations(client, load_settings(), kinds(late_after, silent_after))


def kinds(late_after: dt.timedelta, silent_after: dt.timedelta) -> Kinds:
    """Return the alerts for deployment runs, keyed by kind; the last alert is the test alert.

    Parameters
    ----------
    late_after
        Time after which a run in the ``Late`` state is reported as late, and a run in the ``Pending`` state is reported
        as never started.
    silent_after
        Time without a heartbeat after which a run counts as silent. Prefect sends a heartbeat every 180 s
        (``PREFECT_FLOWS_HEARTBEAT_FREQUENCY``).
    """
    late, silent = (f"{limit.total_seconds() / 60:.3g} min" for limit in (late_after, silent_after))
    return {
        "failed": ("failed", _reactive("Failed")),
        "crashed": ("crashed", _reactive("Crashed")),
        "cancelled": ("was cancelled", _reactive("Cancelled")),
        "late": (f"is late: no worker started it within {late}", _absence("Late", _STARTED, late_after)),
        "never-started": (
            f"never started: a worker took it, but it was not running {late} later",
            _absence("Pending", _STARTED, late_after),
        ),
        "silent": (f"sent no heartbeat for {silent}", _absence("heartbeat", {_HEARTBEAT, *_ENDED}, silent_after)),
        "test": ("is a test", EventTrigger(expect={_TEST})),
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
    """The automations on one server, with the webhook and the notification block that are specified in the settings.

    Raises
    ------
    ConfigurationError
        The settings do not name a receiver for alerts, or the notification block does not exist.
    """

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
            if _standing(existing, expected) == "installed":
                continue
            # Do not update automations in place: the server rejects updates from the client, because the updates lack
            # the trigger's default values.
            for automation in existing:
                self._client.delete_automation(automation.id)
            self._client.create_automation(expected)

    def standings(self) -> dict[str, str]:
        """Return each automation's state, keyed by kind.

        If the saved webhook URL is outdated, report every installed automation as outdated.
        """
        targets = self._targets() if self._saved_url() == self._url else []
        return {name: _standing(existing, expected) for name, expected, existing in self._automations(targets)}

    def send_test(self, timeout_s: float) -> list[str]:
        """Ask the server to send a test alert.

        Return the outcome for each receiver: ``answered 204``, ``sent``, ``not called`` or an error.

        Parameters
        ----------
        timeout_s
            Maximum time, in seconds, to wait for the server to call all receivers.
        """
        event = emit_event(_TEST, resource={"prefect.resource.id": _TEST, "prefect.resource.name": "nightquant"})
        if event is None:
            raise ConfigurationError(
                "Prefect's client is configured not to send events.",
                hint="Unset the environment variables that begin with PREFECT_EVENTS_.",
            )
        EventsWorker.instance().drain()
        calls = len(self._targets())
        deadline = time.monotonic() + timeout_s
        while len(calls_made := self._calls_for(event)) < calls and time.monotonic() < deadline:
            time.sleep(0.5)
        return [_outcome(call) for call in calls_made] + ["not called"] * (calls - len(calls_made))

    def _calls_for(self, event: Event) -> list[ReceivedEvent]:
        """Return the completed webhook and notification calls for an event."""
        # A filter matches only events that occurred before the filter was created, so each query needs a new filter.
        ended = EventFilter(
            event=EventNameFilter(name=[_EXECUTED, _FAILED]),
            related=EventRelatedFilter(id=[f"prefect.event.{event.id}"]),
        )
        # Set a limit, because the server rejects the client's default limit.
        return self._client.read_events(ended, limit=10).events

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


def _outcome(event: ReceivedEvent) -> str:
    if event.event == _FAILED:
        return str(event.payload.get("reason"))
    status = event.payload.get("status_code")
    return "sent" if status is None else f"answered {status}"


def _automation(name: str, says: str, trigger: EventTrigger, targets: list[tuple[UUID, str]]) -> AutomationCore:
    message = (
        "{{ event.resource['prefect.resource.name'] }} "
        + says
        + "{% if event.resource['prefect.state-message'] %}: {{ event.resource['prefect.state-message'] }}{% endif %}"
    )
    # The payload begins with an event and a message, like the payload of a regression alert (`flows.alarm`).
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


def _standing(existing: list[Automation], expected: AutomationCore) -> str:
    if not existing:
        return "missing"
    compared = {"trigger", "actions"}
    # Two automations with the same name would send every alert twice.
    if len(existing) > 1 or existing[0].model_dump(include=compared) != expected.model_dump(include=compared):
        return "outdated"
    return "installed" if existing[0].enabled else "disabled"
