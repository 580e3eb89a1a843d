"""``nightquant search``: search for one workload's best recipes, and print the recipes and all trials."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from itertools import groupby

import click
from rich.console import RenderableType
from rich.text import Text

from flows.commands import format_option, one_workload_option, store_option, toml
from flows.commands.flow_runs import exit_code_of, outcome_of, stopped_by
from flows.console import WIDTH, new_console, plain_table, ratio_within, shortened, wrapped
from flows.request import SearchRequest, SearchResult
from flows.settings import Settings, load_settings
from storage.humanize import size
from storage.root import check_writable
from tasks.search.space import adopt
from tasks.search.trial import Trial
from tasks.workload import Workload
from tasks.workload.recipe import Recipe

_NAMES = 3  # maximum number of trials to name per reason


@click.command()
@one_workload_option
@store_option
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Limit the search to this many seconds of wall time (default: `budget_s` in the [search] section, or 1800).",
)
@format_option("text", "json")
@click.pass_obj
def command(debug: bool, workload: str, store: str, budget: float | None, format: str) -> int:
    """Search for one workload's best recipes within a time budget, and keep all results in the store.

    Press Control-C to stop and see the best recipes so far. To continue a stopped search with the rest of its budget,
    run the same command again. Without a [search] section, the search uses the bounds and the objective in the [gate]
    section.

    \b
    Exit codes: 0 (success), 1 (some work failed), 2 (the request or the configuration is invalid), 4 (another run
    has locked the store), 130 (Control-C stopped the search), 143 (SIGTERM stopped the search).

    \b
    Example:
      nightquant search --workload resnet18 --budget 600
      nightquant search --workload my-model.toml --format json
    """
    settings = load_settings(store=store)
    request = SearchRequest(workload=workload, budget_s=budget, store=store)
    loaded = request.load_workload()
    check_writable(store)
    return exit_code_of(lambda: _run(request, loaded, settings, as_json=format == "json"), debug=debug)


def _run(request: SearchRequest, workload: Workload, settings: Settings, *, as_json: bool) -> int:
    console = new_console(stderr=as_json)
    result = outcome_of(SearchResult, "flows.search:search_recipes", request, settings, console)
    if as_json:
        click.echo(result.model_dump_json(indent=1))
    else:
        for line in _lines(result, workload):
            console.print(line, highlight=False, soft_wrap=isinstance(line, Text))
    return stopped_by(signal.Signals(result.stopped_by)) if result.stopped_by else 0


def _lines(result: SearchResult, workload: Workload) -> Iterator[RenderableType]:
    """Yield a table of trials, the reasons why trials failed or were dropped, and the finalists' recipes in TOML."""
    yield Text()
    yield _table(result.measured())
    yield from _reasons(result.trials)
    yield Text()
    yield from wrapped("→", f"{result.workload}: {result.describe()}")
    if not result.finalists and result.undecided:
        yield from wrapped(" ", "No recipe is known to satisfy the bounds yet. To go on, run the command again.")
    elif not result.finalists:
        yield from wrapped(" ", "No recipe satisfies the bounds. Relax the bounds.")
    if written := [trial.name for trial in result.finalists if trial.origin == "written"]:
        yield from wrapped(" ", f"Already in the workload file: {', '.join(written)}")
    recipes = [recipe for recipe in adopt(workload, result.finalists).recipe if recipe not in workload.recipe]
    if recipes:
        yield from wrapped(" ", "To use these recipes without a search, add them to the workload file:")
    for recipe in recipes:
        yield Text()
        yield from map(Text, _recipe_lines(recipe))


def _reasons(trials: Sequence[Trial]) -> Iterator[Text]:
    """List each reason once, with the affected trials; reasons that differ only in numbers count as equal."""

    def kind(trial: Trial) -> str:
        return re.sub(r"\d[\d.,]*", "#", trial.reason)

    # Omit failed trials whose loss is known, because the table shows the loss.
    explained = [trial for trial in trials if trial.reason and (trial.outcome == "dropped" or not trial.drop)]
    for _, group in groupby(sorted(explained, key=kind), key=kind):
        alike = list(group)
        names = ", ".join(trial.name for trial in alike[:_NAMES]) + (
            f" and {len(alike) - _NAMES} more" if len(alike) > _NAMES else ""
        )
        example = "" if len({trial.reason for trial in alike}) == 1 else "for example, "
        yield from wrapped("–", f"{names}: {example}{alike[0].reason}")


def _table(trials: Sequence[Trial]) -> RenderableType:
    headings = "  #", "candidate", "size", "loss", "at most", "faster", "outcome"
    cells = [_cells(trial) for trial in trials]
    widths = [max(map(len, column)) for column in zip(headings[2:], *cells, strict=True)]
    room = WIDTH - 5 - sum(2 + width for width in widths)
    table = plain_table(*headings, right=("  #", *headings[2:6]))
    for trial, texts in zip(trials, cells, strict=True):
        style = "bold green" if trial.outcome == "chosen" else ""
        table.row(trial.number, shortened(trial.name, room), *texts, style=style)
    return table


def _cells(trial: Trial) -> tuple[str, ...]:
    drop, speed = trial.drop, trial.speed
    loss, most = ("", "") if drop is None else (f"{drop.value + 0.0:.2g}", f"{drop.high + 0.0:.2g}")
    faster = ratio_within(speed.value, speed.low, speed.high) if speed else ""
    return size(trial.size_bytes), loss, most, faster, trial.outcome


def _recipe_lines(recipe: Recipe) -> Iterator[str]:
    """Return a recipe as TOML, with only the keys that differ from the defaults."""
    keys = {"name": recipe.name, "method": recipe.method, "runtimes": list(recipe.runtimes)}
    yield "[[recipe]]"
    for key, value in (keys | recipe.model_dump(mode="json", exclude_defaults=True)).items():
        yield f"{key} = {toml(value)}"
