"""``nightquant generate`` and ``nightquant sensitivity``: sample text from a model, and rank a model's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console

from flows.commands import (
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
@format_option("text", "json")
@store_option
def generate(
    workload: str,
    recipe: str,
    words: int,
    temperature: float,
    seed: int,
    format: str,
    store: str,
) -> None:
    """Sample text from a word language model; if the model is not in the store, train and quantize it first.

    \b
    Example:
      nightquant generate --workload word-lm --words 200 --temperature 0.8
      nightquant generate --workload word-lm --recipe dynamic-int8
    """
    from tasks.generate import generate as sample  # imports torch

    chosen = _workload(workload)
    floats_first = sorted(chosen.recipe, key=lambda item: item.method != "none")
    item = _recipe(chosen, recipe, floats_first)
    with progress_of(f"{chosen.name} · {item.name}: preparing") as progress:
        workspace = Workspace(ArtifactStore(store), progress)
        text = sample(chosen, item, workspace, words=words, temperature=temperature, seed=seed)
    if format == "json":
        print_json({item.name: "".join(text)})
        return
    for piece in text:
        click.echo(piece, nl=False)
    click.echo()


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
def sensitivity(workload: str, recipe: str, keep: str, format: str, store: str) -> None:
    """Rank the quantized layers by the noise that each layer adds to its output; build missing artifacts first.

    \b
    Example:
      nightquant sensitivity --workload resnet18
      nightquant sensitivity --workload resnet18 --recipe static-int8 --keep 0,1,2
    """
    from tasks.sensitivity import keep_effects  # imports torch
    from tasks.sensitivity import sensitivity as rank

    chosen = _workload(workload)
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
