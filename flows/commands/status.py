"""``nightquant status``, the default command: show the latest night, current bundles, problems and next steps."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click
import duckdb
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.commands import format_option, print_json, store_flag, store_option
from flows.console import age, marked_lines, plain_table, shown_path
from flows.reporter import elapsed
from storage.bundles import BundleStore
from storage.humanize import moment, plural
from storage.results import Row, number
from storage.results.catalog import CATALOG
from storage.results.query import open_catalog, rows_of
from storage.root import StoreRoot

if TYPE_CHECKING:
    from storage.results.regressions import Regression

_SHOWN_CONCERNS = 5
_CONCERN_LENGTH = 240
_USUAL = ('query "FROM leaderboard"', "report")
_FIRST = ("doctor", "nightly --profile quick", "workloads")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
# nightquant expects runs to start at the same time every day and to take at most an hour.
_OVERDUE = dt.timedelta(hours=25)

_LAST_RUN = """
with last as (from runs order by night desc, started_at desc limit 1),
decided as (from outcomes_of((select [run_id] from last)) where setting = 'primary')
select run_id, night, started_at, finished_at, status, profile, message, candidates_failed as failed,
    (select count(*) from decided where became = 'promote') as promoted,
    (select count(distinct workload) from decided where current_stays) as kept,
    (select count(*) from decided where decision = 'hold') as held
from last
"""

_FAILURES = """
select workload, stage, split_part(error, chr(10), 1) as error, string_agg(distinct recipe || '/' || runtime, ', '
    order by recipe || '/' || runtime) as candidates
from failures
where run_id = $run and setting <> 'current'
group by all
order by workload, candidates
"""

_WARNED = "from nights where run_id = $run and warning is not null order by workload"

# A night is good if the run completed without a failure.
_LAST_GOOD = "select max(finished_at) as at from runs where status = 'completed'"


@dataclass(frozen=True)
class Concern:
    """A problem that needs attention, and the command to run next (without the ``--store`` option)."""

    kind: str
    text: str
    command: str


@dataclass(frozen=True)
class Overview:
    """State of a store; ``last_run`` is None if there are no results, and ``current`` lists the latest switches."""

    store: str
    last_run: Row | None
    current: tuple[Row, ...]
    concerns: tuple[Concern, ...]


def _age(context: click.Context, parameter: click.Parameter, value: str | None) -> dt.timedelta | None:
    if value is None:
        return None
    if not (match := re.fullmatch(r"([1-9]\d{0,5})([smhd])", value)):
        raise click.BadParameter(f"{value!r} is not a duration; write a duration such as 30s, 90m, 26h or 2d")
    return dt.timedelta(**{_UNITS[match[2]]: int(match[1])})


@click.command()
@click.option(
    "--max-age",
    metavar="AGE",
    callback=_age,
    help="Check only the age of the latest night without failures; exit with code 1 if that night is older than AGE, "
    "for instance 26h.",
)
@format_option("text", "json")
@store_option
@click.pass_context
def command(context: click.Context, max_age: dt.timedelta | None, format: str, store: str) -> None:
    """Show the state of the store: the latest night, current bundles, problems that need attention, and next steps.

    Without a subcommand, nightquant runs this command. The exit code is 0 even if problems need attention. With
    --max-age, the exit code is 1 if the store's last night without failures is older than AGE.

    \b
    Example:
      nightquant
      nightquant status --store /srv/nightquant --format json
      nightquant status --max-age 26h
    """
    now = dt.datetime.now(dt.UTC)
    if max_age is not None and (late := overdue(store, max_age, now)):
        click.echo(f"nightquant: {store}: {late}.", err=True)
        context.exit(1)
    if max_age is not None:
        return
    state = overview(store, now)
    steps = [f"nightquant {step}{'' if step == 'workloads' else store_flag(store)}" for step in _next(state)]
    if format == "json":
        print_json(asdict(state) | {"next": steps})
        return
    console = Console()
    console.print(Text.assemble(("Store  ", "bold"), shown_path(state.store)), soft_wrap=True, highlight=False)
    if state.last_run is None:
        console.print("       The store contains no results yet; the first run will write its results there.")
    sections = {
        "Last night": marked_lines(_night(state.last_run, now)) if state.last_run else None,
        "Current": _current(state.current) if state.current else None,
        "Attention": marked_lines(_concerns(state.concerns)) if state.last_run or state.concerns else None,
        "Next" if state.last_run else "Begin": Text("\n").join(Text(f"  {step}") for step in steps),
    }
    for title, content in sections.items():
        if content is not None:
            console.print()
            console.print(title, style="bold", highlight=False)
            console.print(content, highlight=False, soft_wrap=isinstance(content, Text))


def _next(state: Overview) -> list[str]:
    """Return up to three commands: first the commands that the warnings suggest, then the usual commands."""
    if state.last_run is None:
        return list(_FIRST)
    commands = dict.fromkeys([*(concern.command for concern in state.concerns), *_USUAL])
    return list(commands)[:3]


def _night(last: Row, now: dt.datetime) -> Iterator[tuple[str, Text]]:
    started, finished = _time(last, "started_at"), _time(last, "finished_at")
    ended = f"{moment(finished)}, after {elapsed((finished - started).total_seconds())}"
    yield "", Text(f"{last['night']}, finished {age(now - finished)} ({ended})")
    style = "green" if last["status"] == "completed" else "bold red"
    yield "", Text.assemble((str(last["status"]), style), f", profile {last['profile']}: {_summary(last)}")


def _current(switches: Sequence[Row]) -> Table:
    table = plain_table("", "", "")
    for switch in switches:
        by_hand = "" if switch["action"] == "promote" else f", {switch['action']} by {switch['by']}"
        since = f"since {moment(_time(switch, 'at'))}{by_hand}"
        table.row(f"  {switch['workload']}", switch["version"], since)
    return table


def _concerns(concerns: tuple[Concern, ...]) -> Iterator[tuple[str, Text]]:
    if not concerns:
        yield "", Text("nothing", style="green")
    for concern in concerns[:_SHOWN_CONCERNS]:
        text = Text(concern.text, style="yellow")
        text.truncate(_CONCERN_LENGTH, overflow="ellipsis")
        yield "!", text
    if (more := len(concerns) - _SHOWN_CONCERNS) > 0:
        yield "", Text(f"and {more} more: nightquant status --format json")


def _summary(last: Row) -> str:
    """Summarize the last run's decisions in one line."""
    parts = [f"{last[name]} {name}" for name in ("promoted", "kept", "held", "failed")]
    return ", ".join([*parts, plural(int(number(last, "alarms") or 0), "alert")])


def overview(place: str, now: dt.datetime) -> Overview:
    """Read the state of a store without writing anything."""
    root = StoreRoot.of(place)
    current = tuple(_switches(BundleStore(root)))
    concerns: list[Concern] = []
    last_run = None
    if has_results(root):
        with open_catalog(root) as connection:
            regressions = _regressions(connection)
            if runs := rows_of(connection, _LAST_RUN):
                last_run = {**runs[0], "alarms": len(regressions)}
                concerns += _troubles(connection, last_run, now)
            concerns += [Concern("regression", item.describe(), 'query "FROM regressions"') for item in regressions]
    return Overview(root.url, last_run, current, tuple(concerns))


def has_results(root: StoreRoot) -> bool:
    """Return whether the store contains any results."""
    return root.exists(CATALOG) or bool(root.list("results"))


def overdue(place: str, limit: dt.timedelta, now: dt.datetime) -> str:
    """Describe the age of the last good night if it is older than `limit`; otherwise return ``""``."""
    if not has_results(StoreRoot.of(place)):
        return "no good night yet"
    with open_catalog(place) as connection:
        (last,) = rows_of(connection, _LAST_GOOD)
    if last["at"] is None:
        return "no good night yet"
    at = _time(last, "at")
    return f"no good night since {moment(at)}, {age(now - at)}" if now - at > limit else ""


def _time(row: Row, column: str) -> dt.datetime:
    value = row[column]
    assert isinstance(value, dt.datetime)
    return value


def _switches(bundles: BundleStore) -> Iterator[Row]:
    for workload in bundles.workloads():
        if pointer := bundles.pointer(workload):
            yield {"workload": workload} | pointer.history[-1].model_dump(exclude={"sha256sums"})


def _regressions(connection: duckdb.DuckDBPyConnection) -> list[Regression]:
    rows = rows_of(connection, "from regressions")
    if not rows:
        return []
    # Import late, because SciPy loads slowly and is needed only for nights with regressions.
    from storage.results.regressions import Regression

    regressions = TypeAdapter(list[Regression]).validate_python(rows)
    return [regression for regression in regressions if regression.is_bad]


def _troubles(connection: duckdb.DuckDBPyConnection, last: Row, now: dt.datetime) -> Iterator[Concern]:
    finished_at = _time(last, "finished_at")
    if now - finished_at > _OVERDUE:
        since = f"{moment(finished_at)}, {age(now - finished_at)}"
        yield Concern("overdue", f"no night since {since}", "nightly")
    failures = rows_of(connection, _FAILURES, run=last["run_id"])
    for row in failures:
        text = f"{row['workload']}: {row['candidates']} failed in {row['stage']}: {row['error']}"
        yield Concern("failure", text, 'query "FROM failures"')
    for row in rows_of(connection, _WARNED, run=last["run_id"]):
        text = f"{row['workload']}: {row['why']}. {row['warning']}"
        yield Concern("current", text, f"show {row['workload']}")
    if last["status"] != "completed" and not failures:
        yield Concern("failure", f"the last run was {last['status']}: {last['message']}", "nightly")
