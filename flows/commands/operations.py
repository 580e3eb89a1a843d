"""``nightquant operations``: who is told of nights that end badly or do not begin."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from flows.commands import Function, age_option, format_option, print_json

if TYPE_CHECKING:
    from flows.automations import Automations

_ANSWER_S = 60.0


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
    from flows.automations import is_good

    with _automations(late_after, silent_after) as automations:
        standings = automations.standings()
        calls = automations.send_test(_ANSWER_S) if send and standings["test"] == "installed" else []
    _show(standings, calls, format)
    good = set(standings.values()) == {"installed"} and all(is_good(call) for call in calls)
    if not good:
        click.echo("Not everything that goes wrong would be told. See: nightquant operations install.", err=True)
    context.exit(0 if good else 1)


def _show(standings: Mapping[str, str], calls: Sequence[str], format: str) -> None:
    if format == "json":
        print_json({"automations": standings, "calls": calls})
        return
    for name, text in [*standings.items(), *(("call", call) for call in calls)]:
        click.echo(f"{name:14}{text}")


@contextmanager
def _automations(late_after: dt.timedelta, silent_after: dt.timedelta) -> Iterator[Automations]:
    from flows.execution.server import require_api

    require_api("it keeps the automations")
    from prefect.client.orchestration import get_client

    from flows.automations import Automations, kinds
    from flows.settings import load_settings

    with get_client(sync_client=True) as client:
        yield Automations(client, load_settings(), kinds(late_after, silent_after))
