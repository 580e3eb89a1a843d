"""``nightquant operations``: who is told of nights that end badly or do not begin, and whether it would work.

Prefect's server carries the automations out, whatever became of the night's process and of its worker. A server that is
gone reports nothing: `nightquant status --max-age` is for that.
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
from prefect.events.schemas.events import ReceivedEvent
from prefect.events.utilities import emit_event
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound

from flows.commands import Function, age_option, format_option, print_result
from flows.execution.server import require_api
from flows.settings import Settings, load_settings
from storage.errors import ConfigurationError

_ANSWER_S = 180.0
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

Kinds = Mapping[str, tuple[str, EventTrigger]]  # by name: how a sentence about the run goes on, and when it is said


@click.group()
def command() -> None:
    """Set up alarms for nights that fail, crash, are cancelled, run late, never start or go silent.

    Prefect's server raises them. It calls the webhook and the notification block of the settings, as regressions do.

    \b
    Examples:
      nightquant operations install
      nightquant operations check --send
    """


def _when(function: Function) -> Function:
    late = age_option(
        "--late-after", default="10m", help="How late a run may be, and how long one that was taken may not start."
    )
    silent = age_option("--silent-after", default="10m", help="How long a running night may send no heartbeat.")
    return late(silent(function))


@command.command()
@_when
@format_option("text", "json")
def install(late_after: dt.timedelta, silent_after: dt.timedelta, format: str) -> None:
    """Install the automations, or bring them up to date; disabled ones are enabled again.

    \b
    Example:
      nightquant operations install --late-after 30m
    """
    with _automations(late_after, silent_after) as automations:
        automations.install()
        _show(automations.standings(), [], format)


@command.command()
@click.option("--send", is_flag=True, help="Have the server send a test alarm, and print the answers.")
@_when
@format_option("text", "json")
@click.pass_context
def check(
    context: click.Context, send: bool, late_after: dt.timedelta, silent_after: dt.timedelta, format: str
) -> None:
    """Say which automations are installed, missing, disabled or outdated; exit 1 unless all are installed.

    With --send, exit 1 as well unless everybody who is called answers. Give the times that install was given.

    \b
    Example:
      nightquant operations check --send
    """
    with _automations(late_after, silent_after) as automations:
        standings = automations.standings()
        calls = automations.send_test(_ANSWER_S) if send and standings["test"] == "installed" else []
    _show(standings, calls, format)
    told = all(call == "sent" or call.startswith("answered 2") for call in calls)
    good = set(standings.values()) == {"installed"} and told
    if not good:
        click.echo("Not everything that goes wrong would be told. See: nightquant operations install.", err=True)
    context.exit(0 if good else 1)


def _show(standings: Mapping[str, str], calls: Sequence[str], format: str) -> None:
    lines = (f"{name:14}{text}" for name, text in [*standings.items(), *(("call", call) for call in calls)])
    print_result(format, {"automations": standings, "calls": calls}, lines)


@contextmanager
def _automations(late_after: dt.timedelta, silent_after: dt.timedelta) -> Iterator[Automations]:
    require_api("it keeps the automations")
    with get_client(sync_client=True) as client:
        yield Automations(client, load_settings(), kinds(late_after, silent_after))


def kinds(late_after: dt.timedelta, silent_after: dt.timedelta) -> Kinds:
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
    return {
        "failed": ("failed", _reactive("Failed")),
        "crashed": ("crashed", _reactive("Crashed")),
        "cancelled": ("was cancelled", _reactive("Cancelled")),
        "late": (f"is late: no worker began it within {late}", _absence("Late", _STARTED, late_after)),
        "never-started": (
            f"never started: a worker took it, and {late} later it was not at work",
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
    """The automations of one server, with the webhook and the notification block of the settings.

    Raises
    ------
    ConfigurationError
        The settings name neither, or a block that is not there.
    """

    def __init__(self, client: SyncPrefectClient, settings: Settings, told: Kinds) -> None:
        self._client, self._url, self._told = client, settings.webhook_url.get_secret_value(), told
        self._slug = settings.notification_block
        if not (self._url or self._slug):
            raise ConfigurationError(
                "Nobody is named to be told.",
                hint="Set NIGHTQUANT_WEBHOOK_URL, or NIGHTQUANT_NOTIFICATION_BLOCK to a block of Prefect's.",
            )

    def install(self) -> None:
        """Make each automation that is missing, and make it again if it is disabled or outdated."""
        if self._saved_url() != self._url:
            webhook = Webhook(url=self._url, headers={"Content-Type": "application/json"})
            webhook.save(_BLOCK, overwrite=True)
        for _, wanted, found in self._found(self._targets()):
            if _standing(found, wanted) == "installed":
                continue
            for each in found:  # the client's own update leaves out what a trigger has by default, and is refused
                self._client.delete_automation(each.id)
            self._client.create_automation(wanted)

    def standings(self) -> dict[str, str]:
        """Return how each automation stands, by kind; all are outdated if the webhook's address is."""
        targets = self._targets() if self._saved_url() == self._url else []
        return {name: _standing(found, wanted) for name, wanted, found in self._found(targets)}

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
        ended = EventFilter(
            event=EventNameFilter(name=[_EXECUTED, _FAILED]),
            related=EventRelatedFilter(id=[f"prefect.event.{event.id}"]),
        )
        calls = len(self._targets())
        deadline = time.monotonic() + timeout_s
        # The server refuses the client's own limit.
        while len(found := self._client.read_events(ended, limit=10).events) < calls and time.monotonic() < deadline:
            time.sleep(0.5)
        return [_outcome(each) for each in found] + ["not called"] * (calls - len(found))

    def _found(self, targets: list[tuple[UUID, str]]) -> Iterator[tuple[str, AutomationCore, list[Automation]]]:
        for name, (says, trigger) in self._told.items():
            wanted = _automation(name, says, trigger, targets)
            yield name, wanted, self._client.read_automations_by_name(wanted.name)

    def _saved_url(self) -> str:
        """Return the address that the server calls; "" if no webhook is wanted or saved."""
        if not self._url:
            return ""
        try:
            document = self._client.read_block_document_by_name(_BLOCK, "webhook")
        except ObjectNotFound:
            return ""
        return str(document.data.get("url", ""))

    def _targets(self) -> list[tuple[UUID, str]]:
        """Return the blocks to call, each with its type."""
        targets = []
        for slug in filter(None, (f"webhook/{_BLOCK}" if self._url else "", self._slug)):
            kind, _, name = slug.partition("/")
            try:
                targets.append((self._client.read_block_document_by_name(name, kind).id, kind))
            except ObjectNotFound as error:
                raise ConfigurationError(
                    f'Prefect\'s server has no block "{slug}".', hint="See: prefect block ls."
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
    # As flows.alarm posts regressions: an event and a message, then what it is about.
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
        description="Made by nightquant operations install.",
        enabled=True,
        trigger=trigger,
        actions=actions,
    )


def _standing(found: list[Automation], wanted: AutomationCore) -> str:
    if not found:
        return "missing"
    compared = {"trigger", "actions"}
    # Two of a name would tell everything twice.
    if len(found) > 1 or found[0].model_dump(include=compared) != wanted.model_dump(include=compared):
        return "outdated"
    return "installed" if found[0].enabled else "disabled"
