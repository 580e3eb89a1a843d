"""Run a Prefect flow within a command: start Prefect's server, show progress, and print each error on one line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

import click
import httpx
from rich.console import Console

from flows.execution.server import ServerGoneError, prefect_api, server_gone
from flows.execution.signals import Terminated, unwinding_on_sigterm
from flows.reporter import reporter_for
from flows.settings import Settings, without_signing_key
from tasks.refs import Frozen

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

T = TypeVar("T")
_SERVER = "Prefect's server"


def exit_code_of(run: Callable[[], int], *, debug: bool) -> int:
    """Call `run` and return its exit code; if a signal arrives or Prefect's server stops, print a one-line message."""
    if debug:
        os.environ |= {"PREFECT_LOGGING_LEVEL": "DEBUG", "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "DEBUG"}
    try:
        # Remove the signing key from the environment, because Prefect's server and the workers do not need it.
        with unwinding_on_sigterm(), without_signing_key():
            return run()
    except ServerGoneError as error:
        if debug:
            raise
        click.echo(f"nightquant: {error}", err=True)
        sys.stdout.flush()
        # On a normal exit, Prefect's client would try for minutes to send its events to the stopped server.
        os._exit(error.exit_code)
    except (Terminated, KeyboardInterrupt) as stop:
        return stopped_by(signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def stopped_by(number: signal.Signals) -> int:
    """Print that a signal stopped the command, and return the exit code."""
    click.echo(
        f"nightquant: Stopped by {number.name}. To continue, run the command again; finished artifacts are reused.",
        err=True,
    )
    return 128 + number


def outcome_of(expected: type[T], flow: str, request: Frozen, settings: Settings, console: Console) -> T:
    """Run a flow (``module:name``), and return the flow's result."""
    with reporter_for(console) as reporter:
        reporter.started(_SERVER)
        with prefect_api(meanwhile=partial(resolve_name, flow)) as server_s:
            reporter.finished(_SERVER, server_s)
            # Import the flow only after the server's URL is set, because Prefect reads its settings on import.
            run_flow: Callable[..., State[Any]] = resolve_name("flows.execution.context:run_flow")
            try:
                state = run_flow(resolve_name(flow), request, settings, reporter)
                outcome = state.result(raise_on_failure=False)
            except httpx.TransportError as error:
                raise server_gone(error) from error
    if isinstance(outcome, httpx.TransportError):
        raise server_gone(outcome) from outcome
    if isinstance(outcome, BaseException):
        raise outcome
    if not isinstance(outcome, expected):
        raise click.ClickException(
            f"The flow run ended in the unexpected state {state.name}: {state.message}. "
            "To see Prefect's log, repeat the command with --debug."
        )
    return outcome
