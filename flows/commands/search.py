"""``nightquant search``, ``sensitivity`` and ``generate``: work with the recipes of one workload."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

import click
from rich.console import Console, RenderableType
from rich.text import Text

from flows.commands import format_option, one_workload_option, store_option, toml
from flows.commands.nightly import exit_code_of, outcome_of, stopped_by
from flows.console import WIDTH, new_console, new_table, plain_table, ratio_within, shortened, wrapped
from flows.reporter import reporter_for
from flows.request import NightlyRequest, SearchRequest, SearchResult
from flows.settings import Settings, load_settings
from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from storage.humanize import size
from storage.root import check_writable
from tasks.run.stages import obtain, prepare
from tasks.search.space import adopt
from tasks.search.trial import Trial
from tasks.values.job import Workspace
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
def search(debug: bool, workload: str, store: str, budget: float | None, format: str) -> int:
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
    result = outcome_of(SearchResult, request, settings, console)
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
    if written := [str(trial.name) for trial in result.finalists if trial.origin == "written"]:
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
        names = ", ".join(str(trial.name) for trial in alike[:_NAMES])
        names += f" and {len(alike) - _NAMES} more" if len(alike) > _NAMES else ""
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
        table.row(trial.number, shortened(str(trial.name), room), *texts, style=style)
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


@click.command()
@one_workload_option
@click.option("--recipe", "-r", default="", metavar="NAME", help="Use this recipe.")
@click.option("--words", default=1000, show_default=True, metavar="N", help="Sample this many words.")
@click.option("--temperature", default=1.0, show_default=True, metavar="T", help="Sample at this temperature.")
@click.option("--seed", default=0, show_default=True, metavar="N", help="Sample the words with this random seed.")
@store_option
def generate(workload: str, recipe: str, words: int, temperature: float, seed: int, store: str) -> None:
    """Sample text from a word language model; if the model is not in the store, train and quantize it first.

    \b
    Example:
      nightquant generate --workload word-lm --words 200 --temperature 0.8
      nightquant generate --workload word-lm --recipe dynamic-int8
    """
    from tasks.run.generate import generate as sample  # imports torch

    chosen = _workload(workload)
    floats_first = sorted(chosen.recipe, key=lambda item: item.method != "none")
    item = _recipe(chosen, recipe, floats_first)
    with _workspace(store, f"{chosen.name} · {item.name}: preparing") as workspace:
        text = sample(chosen, item, workspace, words=words, temperature=temperature, seed=seed)
    for piece in text:
        click.echo(piece, nl=False)
    click.echo()


@click.command()
@one_workload_option
@click.option("--recipe", "-r", default="", metavar="NAME", help="Use this recipe.")
@store_option
def sensitivity(workload: str, recipe: str, store: str) -> None:
    """Rank the quantized layers by the noise that each layer adds to its output; build missing artifacts first.

    \b
    Example:
      nightquant sensitivity --workload resnet18
      nightquant sensitivity --workload resnet18 --recipe static-int8
    """
    from tasks.measure.sensitivity import sensitivity as rank  # imports torch

    chosen = _workload(workload)
    able = [item for item in chosen.recipe if item.quantizes]
    quantizing = _recipe(chosen, recipe, able, "quantizing recipe")
    label = f"{chosen.name} · {quantizing.name}"
    with _workspace(store, f"{label}: sensitivity") as workspace:
        job = obtain(workspace, chosen, prepare(workspace, chosen))
        ranking = rank(job, quantizing, workspace)
    title = f"{label}: noise added by each quantized layer, worst first"
    table = new_table(title, "rank", "module", "type", "SQNR (dB)", right=("rank", "SQNR (dB)"))
    for layer in ranking:
        table.row(layer.rank, layer.module, layer.type, f"{layer.sqnr_db:.1f}")
    Console().print(table)


def _workload(name: str) -> Workload:
    (workload,) = NightlyRequest(workloads=(name,)).load_workloads()
    return workload


def _recipe(workload: Workload, name: str, recipes: Sequence[Recipe], what: str = "recipe") -> Recipe:
    """Return the named recipe, or the first recipe if `name` is empty."""
    by_name = {recipe.name: recipe for recipe in recipes}
    name = name or next(iter(by_name), "")
    if name not in by_name:
        raise ConfigurationError(
            f'Workload "{workload.name}" has no {what} "{name}".', hint=f"Use one of these: {', '.join(by_name)}."
        )
    return by_name[name]


@contextmanager
def _workspace(store: str, label: str) -> Iterator[Workspace]:
    """Provide a workspace that shows its progress on standard error."""
    with reporter_for(Console(stderr=True)) as reporter:
        reporter.started(label)
        yield Workspace(
            ArtifactStore(store), lambda done, total, unit="": reporter.progressed(label, done, total, unit)
        )
        reporter.finished(label)
