"""The subcommands, and the options and output formats that they share."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from collections.abc import Callable, Iterable
from getpass import getuser
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import TypeAdapter

from flows.settings import load_settings
from storage.results import PROFILES
from storage.root import set_cache_folder

FILE = click.Path(path_type=Path, dir_okay=False)
Function = TypeVar("Function", bound=Callable[..., object])


def _store(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    settings = load_settings(store=value)
    set_cache_folder(settings.cache)
    return settings.store


def _night(context: click.Context, parameter: click.Parameter, value: str | None) -> dt.date | None:
    if value is None:
        return None
    try:
        return dt.date.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(
            f"{value!r} is not a date; write the date as YYYY-MM-DD, for instance 2026-11-21"
        ) from error


def _by(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    if value:
        return value
    try:
        return getuser()
    except (KeyError, OSError):  # a user id does not always have a user name, for example in a container
        return f"uid {os.getuid()}"


# The command receives ``--store`` as ``store: str``; if the option is absent, the settings supply the store.
store_option = click.option(
    "--store",
    metavar="PATH|URL",
    callback=_store,
    help="Use this store (default: from NIGHTQUANT_STORE or nightquant.toml, otherwise ./nightquant-store).",
)
# The command receives the ``WORKLOAD`` argument as ``workload: str``.
workload_argument = click.argument("workload")
# The command receives ``--profile`` as ``profile: str | None``.
profile_option = click.option(
    "--profile",
    type=click.Choice(PROFILES),
    help="Measure until the result is clear, but for at most 1 min (quick), 5 min (standard) or 15 min (full) per "
    "workload (default: standard).",
)
# The command receives ``--by`` as ``by: str``.
by_option = click.option(
    "--by", metavar="NAME", callback=_by, help="Record your decision under this name (default: your user name)."
)


# The command receives ``workload: tuple[str, ...]``; an empty tuple means every built-in workload.
workload_option = click.option(
    "--workload",
    "-w",
    multiple=True,
    metavar="NAME|FILE.toml",
    help="Use this workload, given by name or as a TOML file; repeatable.",
)
# The command receives ``workload: str``.
one_workload_option = click.option(
    "--workload",
    "-w",
    required=True,
    metavar="NAME|FILE.toml",
    help="Use this workload, given by name or as a TOML file.",
)
# The command receives ``recipe: tuple[str, ...]``; an empty tuple means all recipes.
recipe_option = click.option("--recipe", "-r", multiple=True, metavar="NAME", help="Use only this recipe; repeatable.")


def night_option(help: str) -> Callable[[Function], Function]:  # noqa: A002 - click's own word
    """Add ``--night``, which the command receives as ``night: datetime.date | None``."""
    return click.option("--night", metavar="YYYY-MM-DD", callback=_night, help=help)


def reason_option(help: str) -> Callable[[Function], Function]:  # noqa: A002 - click's own word
    """Add the required option ``--reason``, which the command receives as ``reason: str``."""
    return click.option("--reason", required=True, help=help)


def format_option(*formats: str) -> Callable[[Function], Function]:
    """Add ``--format``, which the command receives as ``format: str``; the first format is the default."""
    return click.option(
        "--format",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Print the result in this format.",
    )


def print_json(document: object) -> None:
    """Print a document as JSON; the document may contain Pydantic models, data classes, dates and paths."""
    click.echo(TypeAdapter(Any).dump_json(document, indent=1))


def toml(value: object) -> str:
    """Format a value as TOML on one line: tables as inline tables, strings and numbers as in JSON."""
    if isinstance(value, dict):
        names = {key: key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml(key) for key in value}
        pairs = ", ".join(f"{names[key]} = {toml(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    # Python's `json` escapes all control characters except DEL (``\x7f``).
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def store_flag(store: str) -> str:
    """Return the ``--store`` option for a suggested command, or ``""`` if the settings already name the store."""
    return "" if store == load_settings().store else f" --store {store}"


def print_tracebacks(tracebacks: Iterable[str]) -> None:
    """Print tracebacks on standard error if the user passed ``--debug``; the command prints the errors themselves."""
    context = click.get_current_context(silent=True)
    if context is not None and context.find_root().obj is True:
        for text in dict.fromkeys(tracebacks):
            click.echo(text, err=True)
