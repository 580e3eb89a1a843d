"""``nightquant sensitivity``: which layers lose most by quantization, and what keeping them float gives back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from flows.commands import (
    format_option,
    print_json,
    progress_of,
    recipe_option,
    store_option,
    workload_option,
)
from flows.request import NightlyRequest
from flows.tables import new_table
from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from tasks.job import Workspace
from tasks.results import LayerSensitivity
from tasks.stages import obtain, prepare
from tasks.workload import Workload
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from tasks.sensitivity import KeepEffect


@click.command()
@workload_option
@recipe_option
@click.option(
    "--keep",
    default="0,1,2,4",
    show_default=True,
    metavar="K,…",
    help='Evaluate with the worst K layers kept float; "" for the ranking alone.',
)
@format_option("table", "json")
@store_option
def command(workload: tuple[str, ...], recipe: tuple[str, ...], keep: str, format: str, store: str) -> None:
    """Rank the quantized layers by their own noise; what is missing in the store is made first.

    \b
    Example:
      nightquant sensitivity --workload resnet18
      nightquant sensitivity --workload resnet18 --recipe static-int8 --keep 0,1,2
    """
    from tasks.sensitivity import keep_effects, sensitivity

    chosen, quantizing = _chosen(workload, recipe)
    counts = _counts(keep)
    with progress_of(f"{chosen.name} · {quantizing.name}: sensitivity") as progress:
        workspace = Workspace(ArtifactStore(store), progress)
        job = obtain(workspace, chosen, prepare(workspace, chosen))
        ranking = sensitivity(job, quantizing, workspace)
        effects = keep_effects(job, quantizing, ranking, counts, workspace)
    if format == "json":
        rows = {
            "layers": [layer.model_dump(mode="json") for layer in ranking],
            "keep": [effect.model_dump(mode="json") for effect in effects],
        }
        print_json(rows)
        return
    _print_ranking(f"{chosen.name} · {quantizing.name}", ranking)
    if effects:
        _print_effects(effects)


def _chosen(workloads: tuple[str, ...], recipes: tuple[str, ...]) -> tuple[Workload, Recipe]:
    if len(workloads) != 1 or len(recipes) > 1:
        raise ConfigurationError(
            "Name one workload, and at most one recipe.", hint="For instance: nightquant sensitivity -w resnet18"
        )
    (workload,) = NightlyRequest(workloads=workloads).load_workloads()
    by_name = {recipe.name: recipe for recipe in workload.recipe if recipe.method != "none"}
    if not by_name or (recipes and recipes[0] not in by_name):
        asked = f' "{recipes[0]}"' if recipes else ""
        raise ConfigurationError(
            f'Workload "{workload.name}" has no quantizing recipe{asked}.', hint=f"It has: {', '.join(by_name)}."
        )
    return workload, by_name[recipes[0]] if recipes else next(iter(by_name.values()))


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no list of numbers such as 0,1,2", param_hint="--keep") from error


def _print_ranking(name: str, ranking: Sequence[LayerSensitivity]) -> None:
    title = f"{name}: own noise of each quantized layer, worst first"
    table = new_table(title, "rank", "module", "type", "SQNR (dB)", right=("rank", "SQNR (dB)"))
    for layer in ranking:
        # As text: a module's name may hold what rich takes for markup.
        table.add_row(*map(Text, (str(layer.rank), layer.module, layer.type, f"{layer.sqnr_db:.1f}")))
    Console().print(table)


def _print_effects(effects: Sequence[KeepEffect]) -> None:
    metric, quality = effects[0].quality_metric, effects[0].float_quality
    numbers = ("kept", metric, "against float", "size (MB)")
    title = f"The worst layers kept float ({metric} of the float model: {quality:.4g})"
    table = new_table(title, "kept", "modules", *numbers[1:], right=numbers)
    for effect in effects:
        table.add_row(
            str(effect.kept),
            Text(", ".join(effect.modules) or "-"),
            f"{effect.quality:.4g}",
            f"{effect.quality - effect.float_quality:+.3g}",
            f"{effect.size_bytes / 1e6:.2f}",
        )
    Console().print(table)
