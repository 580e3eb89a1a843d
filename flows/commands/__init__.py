"""The subcommands, and the options and tables that several of them share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import date
from getpass import getuser
from typing import TypeVar

import click
from rich.console import Console
from rich.table import Table

from flows.reporter import reporter_for
from flows.settings import load_settings
from storage.results import PROFILES
from storage.root import set_cache_folder
from tasks.job import Progress

Function = TypeVar("Function", bound=Callable[..., object])


def _store(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    settings = load_settings(store=value)
    set_cache_folder(settings.cache)
    return settings.store


def _night(context: click.Context, parameter: click.Parameter, value: str | None) -> date | None:
    if value is None:
        return None
    try:
        return date.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no date; expected YYYY-MM-DD, for instance 2026-11-21") from error


# ``store: str``: the flag's or the settings' value.
store_option = click.option(
    "--store",
    metavar="PATH|URL",
    callback=_store,
    help="The store's root (default: NIGHTQUANT_STORE, nightquant.toml, or ./nightquant-store).",
)
# ``workload: tuple[str, ...]``: none given means every built-in one.
workload_option = click.option(
    "--workload", "-w", multiple=True, metavar="NAME|FILE.toml", help="A workload by name or TOML file; repeatable."
)
# ``recipe: tuple[str, ...]``: none given means all.
recipe_option = click.option("--recipe", "-r", multiple=True, metavar="NAME", help="Only these recipes; repeatable.")
# ``profile: str | None``.
profile_option = click.option(
    "--profile",
    type=click.Choice(PROFILES),
    help="How long to measure: for up to 1, 5 or 15 min a workload, until speed is decided (default: standard).",
)


def night_option(help: str) -> Callable[[Function], Function]:  # noqa: A002 - click's own word
    """``--night``: passes ``night: datetime.date | None``."""
    return click.option("--night", metavar="YYYY-MM-DD", callback=_night, help=help)


def format_option(*formats: str) -> Callable[[Function], Function]:
    """``--format``: passes ``format: str``; the first format is the default."""
    return click.option(
        "--format", type=click.Choice(formats), default=formats[0], show_default=True, help="How to print."
    )


def user_name() -> str:
    """Return who runs this; a container's user may have no name."""
    try:
        return getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def new_table(title: str, *headings: str, right: Collection[str] = ()) -> Table:
    """Make a table whose cells wrap; the columns of the headings in `right` are numbers."""
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, overflow="fold", justify="right" if heading in right else "left")
    return table


@contextmanager
def progress_of(label: str) -> Iterator[Progress]:
    """Show what a command does before it prints, on standard error."""
    with reporter_for(Console(stderr=True)) as reporter:
        began = time.monotonic()
        reporter.started(label)
        yield lambda done, total, unit="": reporter.progressed(label, done, total, unit)
        reporter.finished(label, time.monotonic() - began)
