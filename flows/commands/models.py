"""``nightquant generate`` and ``nightquant sensitivity``: sample text from a model, and rank a model's layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flows.commands import (
    FILE,
    format_option,
    one_recipe_option,
    one_workload_option,
    print_json,
    progress_of,
    store_option,
)
from flows.console import new_table
from flows.request import NightlyRequest
from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from storage.humanize import plural
from tasks.extensions import METHODS
from tasks.job import Workspace
from tasks.results import LayerSensitivity
from tasks.stages import obtain, prepare
from tasks.workload import Workload
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from tasks.sensitivity import KeepEffect


@click.command()
@one_workload_option
@one_recipe_option
@click.option("--words", default=1000, show_default=True, metavar="N", help="Sample this many words.")
@click.option("--temperature", default=1.0, show_default=True, metavar="T", help="Sample at this temperature.")
@click.option("--seed", default=0, show_default=True, metavar="N", help="Sample the words with this random seed.")
@click.option("-o", "--output", type=FILE, help="Write the text to this file instead of the terminal.")
@click.option("--compare", is_flag=True, help="Also show text from the float model, sampled with the same seed.")
@format_option("text", "json")
@store_option
def generate(
    workload: tuple[str, ...],
    recipe: tuple[str, ...],
    words: int,
    temperature: float,
    seed: int,
    output: Path | None,
    compare: bool,
    format: str,
    store: str,
) -> None:
    """Sample text from a word language model; if the model is not in the store, train and quantize it first.

    \b
    Example:
      nightquant generate --workload word-lm --words 200 --temperature 0.8
      nightquant generate --workload word-lm --recipe dynamic-int8 --compare
    """
    from tasks.generate import generate as sample  # imports torch

    if output is not None and format == "json":
        raise ConfigurationError(
            "--output cannot be used with --format json, which writes the text to standard output.",
            hint="Omit --output, and redirect standard output to a file.",
        )
    if output is not None and not output.parent.is_dir():  # check the folder before training or sampling
        raise ConfigurationError(
            f"{output} cannot be written, because the folder {output.parent} does not exist.",
            hint="Create the folder first.",
        )
    chosen = _workload(workload or ("word-lm",), recipe, hint="To add the float model, use --compare.")
    recipes, texts = _recipes(chosen, recipe, compare), []
    for item in recipes:
        with progress_of(f"{chosen.name} · {item.name}: preparing") as progress:
            workspace = Workspace(ArtifactStore(store), progress)
            texts.append(sample(chosen, item, workspace, words=words, temperature=temperature, seed=seed))
    if format == "json":
        print_json({item.name: "".join(text) for item, text in zip(recipes, texts, strict=True)})
        return
    with output.open("w", encoding="utf-8") if output else nullcontext() as stream:
        if compare:
            _print_columns([item.name for item in recipes], texts, Console(file=stream))
        else:
            for piece in texts[0]:
                click.echo(piece, file=stream, nl=False)
            click.echo(file=stream)
    if output:
        click.echo(f"The text was written to {output}.", err=True)


@click.command()
@one_workload_option
@one_recipe_option
@click.option(
    "--keep",
    default="0,1,2,4",
    show_default=True,
    metavar="K,…",
    help="Evaluate the model with the K noisiest layers kept in float, for each K in this list; an empty list "
    '("") shows only the ranking.',
)
@format_option("table", "json")
@store_option
def sensitivity(workload: tuple[str, ...], recipe: tuple[str, ...], keep: str, format: str, store: str) -> None:
    """Rank the quantized layers by the noise that each layer adds to its output; build missing artifacts first.

    \b
    Example:
      nightquant sensitivity --workload resnet18
      nightquant sensitivity --workload resnet18 --recipe static-int8 --keep 0,1,2
    """
    from tasks.sensitivity import keep_effects  # imports torch
    from tasks.sensitivity import sensitivity as rank

    chosen = _workload(workload, recipe, hint="Example: nightquant sensitivity -w resnet18")
    able = [item for item in chosen.recipe if METHODS[item.method].quantizes]
    quantizing = _recipe(chosen, recipe, able, "quantizing recipe")
    try:
        counts = tuple(sorted({int(part) for part in keep.split(",") if part.strip()}))
    except ValueError as error:
        raise click.BadParameter(
            f"{keep!r} is not a list of whole numbers; write a list such as 0,1,2", param_hint="--keep"
        ) from error
    with progress_of(f"{chosen.name} · {quantizing.name}: sensitivity") as progress:
        workspace = Workspace(ArtifactStore(store), progress)
        job = obtain(workspace, chosen, prepare(workspace, chosen))
        ranking = rank(job, quantizing, workspace)
        effects = keep_effects(job, quantizing, ranking, counts, workspace)
    if format == "json":
        print_json({"layers": ranking, "keep": effects})
        return
    _print_ranking(f"{chosen.name} · {quantizing.name}", ranking)
    if effects:
        _print_effects(effects)


def _workload(names: tuple[str, ...], recipes: tuple[str, ...], *, hint: str) -> Workload:
    if len(names) != 1 or len(recipes) > 1:
        raise ConfigurationError(
            f"The command was given {plural(len(names), 'workload')} and {plural(len(recipes), 'recipe')}. Pass "
            "--workload exactly once, and --recipe at most once.",
            hint=hint,
        )
    (workload,) = NightlyRequest(workloads=names).load_workloads()
    return workload


def _recipe(workload: Workload, names: tuple[str, ...], recipes: Sequence[Recipe], what: str = "recipe") -> Recipe:
    """Return the recipe whose name is ``names[0]``, or the first recipe if `names` is empty."""
    by_name = {recipe.name: recipe for recipe in recipes}
    name = names[0] if names else next(iter(by_name), "")
    if name not in by_name:
        named = f' "{name}"' if name else ""
        hint = f"Use one of these: {', '.join(by_name)}." if by_name else ""
        raise ConfigurationError(f'Workload "{workload.name}" has no {what}{named}.', hint=hint)
    return by_name[name]


def _recipes(workload: Workload, names: tuple[str, ...], compare: bool) -> list[Recipe]:
    """Return the chosen recipe, which is a float recipe by default.

    If `compare` is true, return a float recipe and the chosen recipe, which is then a quantized recipe by default.
    """
    floats = [recipe for recipe in workload.recipe if recipe.method == "none"]
    quantized = [recipe for recipe in workload.recipe if recipe.method != "none"]
    if not compare:
        return [_recipe(workload, names, [*floats, *quantized])]
    if not floats or not (quantized or names):
        raise ConfigurationError(
            f'--compare needs a float recipe and a quantized recipe, but workload "{workload.name}" has no '
            f"{'quantized' if floats else 'float'} recipe.",
            hint='Add such a recipe to the workload file; a float recipe has method = "none".',
        )
    return [floats[0], _recipe(workload, names, [*quantized, *floats])]


def _print_columns(headings: list[str], texts: list[Iterator[str]], console: Console) -> None:
    """Print texts in columns. A terminal shows each word as it arrives; a file receives only the complete texts."""
    grown = [""] * len(texts)
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        for pieces in zip_longest(*texts, fillvalue=""):
            grown = [text + piece for text, piece in zip(grown, pieces, strict=True)]
            table = Table(expand=True)
            for heading in headings:
                table.add_column(heading, ratio=1, overflow="fold")
            # `Text` prevents rich from interpreting words as markup.
            table.add_row(*map(Text, grown))
            live.update(table, refresh=console.is_terminal)


def _print_ranking(name: str, ranking: Sequence[LayerSensitivity]) -> None:
    title = f"{name}: noise added by each quantized layer, worst first"
    table = new_table(title, "rank", "module", "type", "SQNR (dB)", right=("rank", "SQNR (dB)"))
    for layer in ranking:
        table.row(layer.rank, layer.module, layer.type, f"{layer.sqnr_db:.1f}")
    Console().print(table)


def _print_effects(effects: Sequence[KeepEffect]) -> None:
    metric, quality = effects[0].quality_metric, effects[0].float_quality
    numbers = ("kept", metric, "vs. float", "size (MB)")
    title = f"Worst layers kept in float ({metric} of the float model: {quality:.4g})"
    table = new_table(title, "kept", "modules", *numbers[1:], right=numbers)
    for effect in effects:
        change = f"{effect.quality - effect.float_quality:+.3g}"
        size = f"{effect.size_bytes / 1e6:.2f}"
        table.row(effect.kept, ", ".join(effect.modules) or "-", f"{effect.quality:.4g}", change, size)
    Console().print(table)
