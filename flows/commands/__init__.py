"""The subcommands, and the options and output formats that they share."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from pydantic import BaseModel
from rich.console import Console

from flows.reporter import reporter_for
from flows.settings import load_settings
from storage.results import PROFILES
from storage.root import set_cache_folder

if TYPE_CHECKING:
    from tasks.job import Progress

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
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


def _reason(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter('the reason is empty; give a reason, for instance --reason "worse on our traffic"')
    return value


def _by(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    if value:
        return value
    try:
        return getuser()
    except (KeyError, OSError):  # a user id does not always have a user name, for example in a container
        return f"uid {os.getuid()}"


def _age(context: click.Context, parameter: click.Parameter, value: str | None) -> dt.timedelta | None:
    if value is None:
        return None
    if not (match := re.fullmatch(r"([1-9]\d{0,5})([smhd])", value)):
        raise click.BadParameter(f"{value!r} is not a duration; write a duration such as 30s, 90m, 26h or 2d")
    return dt.timedelta(**{_UNITS[match[2]]: int(match[1])})


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


def workloads_option(help: str, metavar: str = "NAME|FILE.toml") -> Callable[[Function], Function]:  # noqa: A002
    """Add ``--workload``, which the command receives as ``workload: tuple[str, ...]``."""
    return click.option("--workload", "-w", multiple=True, metavar=metavar, help=help)


# If the option is absent, the command receives an empty tuple, which means every built-in workload.
workload_option = workloads_option("Use this workload, given by name or as a TOML file; repeatable.")
# The command receives ``workload: str``.
one_workload_option = click.option(
    "--workload",
    "-w",
    required=True,
    metavar="NAME|FILE.toml",
    help="Use this workload, given by name or as a TOML file.",
)


def recipes_option(help: str) -> Callable[[Function], Function]:  # noqa: A002 - click's own word
    """Add ``--recipe``, which the command receives as ``recipe: tuple[str, ...]``; an empty tuple means all recipes."""
    return click.option("--recipe", "-r", multiple=True, metavar="NAME", help=help)


recipe_option = recipes_option("Use only this recipe; repeatable.")
# The command receives ``recipe: str``; ``""`` means the first suitable recipe.
one_recipe_option = click.option("--recipe", "-r", default="", metavar="NAME", help="Use this recipe.")


def night_option(help: str) -> Callable[[Function], Function]:  # noqa: A002 - click's own word
    """Add ``--night``, which the command receives as ``night: datetime.date | None``."""
    return click.option("--night", metavar="YYYY-MM-DD", callback=_night, help=help)


def reason_option(help: str) -> Callable[[Function], Function]:  # noqa: A002 - click's own word
    """Add the required option ``--reason``, which the command receives as ``reason: str``."""
    return click.option("--reason", required=True, callback=_reason, help=help)


def age_option(name: str, *, help: str, default: str | None = None) -> Callable[[Function], Function]:  # noqa: A002
    """Add an option such as ``--max-age 26h``; its value is a `datetime.timedelta`, or None if the option is absent."""
    return click.option(name, metavar="AGE", callback=_age, default=default, show_default=True, help=help)


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
    click.echo(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False, default=_as_json))


def _as_json(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, dt.date):  # includes datetime
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON; convert the value to text")


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


def print_result(format: str, document: object, lines: Iterable[str]) -> None:
    """Print a document as JSON if `format` is ``json``; otherwise, print `lines`, which show the document as text."""
    if format == "json":
        print_json(document)
    else:
        for line in lines:
            click.echo(line)


def store_flag(store: str) -> str:
    """Return the ``--store`` option for a suggested command, or ``""`` if the settings already name the store."""
    return "" if store == load_settings().store else f" --store {store}"


def print_tracebacks(tracebacks: Iterable[str]) -> None:
    """Print tracebacks on standard error if the user passed ``--debug``; the command prints the errors themselves."""
    context = click.get_current_context(silent=True)
    if context is not None and context.find_root().obj is True:
        for text in dict.fromkeys(tracebacks):
            click.echo(text, err=True)


@contextmanager
def progress_of(label: str) -> Iterator[Progress]:
    """Show a command's progress on standard error."""
    with reporter_for(Console(stderr=True)) as reporter:
        began = time.monotonic()
        reporter.started(label)
        yield lambda done, total, unit="": reporter.progressed(label, done, total, unit)
        reporter.finished(label, time.monotonic() - began)
