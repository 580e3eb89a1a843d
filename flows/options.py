"""Options that several commands share, spelled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def store_option(command: Command) -> Command:
    """``--store``: passes ``store: str``, the flag's or the settings' value."""
    return click.option(
        "--store",
        metavar="PATH|URL",
        callback=_store,
        help="The store's root (default: NIGHTQUANT_STORE, nightquant.toml, or ./nightquant-store).",
    )(command)


def workload_option(command: Command) -> Command:
    """``--workload``: passes ``workload: tuple[str, ...]``; none given means every built-in one."""
    return click.option(
        "--workload", "-w", multiple=True, metavar="NAME|FILE.toml", help="A workload by name or TOML file; repeatable."
    )(command)


def recipe_option(command: Command) -> Command:
    """``--recipe``: passes ``recipe: tuple[str, ...]``; none given means all."""
    return click.option("--recipe", "-r", multiple=True, metavar="NAME", help="Only these recipes; repeatable.")(
        command
    )


def profile_option(command: Command) -> Command:
    """``--profile``: passes ``profile: str | None``."""
    return click.option(
        "--profile",
        type=click.Choice(["quick", "standard", "full"]),
        default=None,
        help="How long to measure: 2 x 4, 5 x 8 or 10 x 10 launches x rounds (default: standard).",
    )(command)


def night_option(command: Command) -> Command:
    """``--night``: passes ``night: datetime.date | None``."""
    return click.option(
        "--night", metavar="YYYY-MM-DD", callback=_night, default=None, help="The date that counts (default: today)."
    )(command)


def format_option(*formats: str) -> Callable[[Command], Command]:
    """``--format``: passes ``format: str``; the first format is the default."""

    def add(command: Command) -> Command:
        return click.option(
            "--format", type=click.Choice(formats), default=formats[0], show_default=True, help="How to print."
        )(command)

    return add


def _store(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    from flows.settings import load_settings

    return load_settings(store=value).store


def _night(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    from datetime import date

    if value is None:
        return None
    try:
        return date.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no date; expected YYYY-MM-DD, for instance 2026-11-21") from error
