"""Options that several commands share, spelled once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Literal, TypeVar, get_args

import click

Function = TypeVar("Function", bound=Callable[..., object])
ProfileName = Literal["quick", "standard", "full"]
TaskRunnerName = Literal["threads", "processes", "dask", "ray"]


def _store(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    from flows.settings import load_settings
    from storage.root import set_cache_folder

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
    type=click.Choice(get_args(ProfileName)),
    help="How long to measure: 2 x 4, 5 x 8 or 10 x 10 launches x rounds (default: standard).",
)


def night_option(help: str) -> Callable[[Function], Function]:  # noqa: A002 - click's own word
    """``--night``: passes ``night: datetime.date | None``."""
    return click.option("--night", metavar="YYYY-MM-DD", callback=_night, help=help)


def format_option(*formats: str) -> Callable[[Function], Function]:
    """``--format``: passes ``format: str``; the first format is the default."""
    return click.option(
        "--format", type=click.Choice(formats), default=formats[0], show_default=True, help="How to print."
    )
