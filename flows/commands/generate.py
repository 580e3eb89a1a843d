"""``nightquant generate``: text sampled from a word language model, float or quantized."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import zip_longest
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flows.commands import format_option, print_json, progress_of, recipe_option, store_option, workload_option
from flows.request import NightlyRequest
from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from tasks.job import Workspace
from tasks.workload import Workload
from tasks.workload.recipe import Recipe


@click.command()
@workload_option
@recipe_option
@click.option("--words", default=1000, show_default=True, metavar="N", help="Words to sample.")
@click.option("--temperature", default=1.0, show_default=True, metavar="T", help="Above 0; lower is surer.")
@click.option("--seed", default=0, show_default=True, metavar="N", help="Equal seeds give equal text.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write here, not to the terminal."
)
@click.option("--compare", is_flag=True, help="Show the float model's text beside the recipe's, from the same seed.")
@format_option("text", "json")
@store_option
def command(
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
    """Sample text from a word language model; what is missing in the store is trained and quantized first.

    \b
    Example:
      nightquant generate --workload word-lm --words 200 --temperature 0.8
      nightquant generate --workload word-lm --recipe dynamic-int8 --compare
    """
    from tasks.generate import generate

    if len(workload) > 1 or len(recipe) > 1:
        raise ConfigurationError(
            "One workload and one recipe at a time, please.", hint="Use --compare for float beside it."
        )
    if output is not None and format == "json":
        raise ConfigurationError("JSON goes to standard output.", hint="Redirect it, or leave out --output.")
    if output is not None and not output.parent.is_dir():  # said before the work, not after it
        raise ConfigurationError(f"{output} cannot be written: {output.parent} is no folder.", hint="Make it first.")
    (chosen,) = NightlyRequest(workloads=workload or ("word-lm",)).load_workloads()
    recipes, texts = _recipes(chosen, recipe, compare), []
    for each in recipes:
        with progress_of(f"{chosen.name} · {each.name}: preparing") as progress:
            workspace = Workspace(ArtifactStore(store), progress)
            texts.append(generate(chosen, each, workspace, words=words, temperature=temperature, seed=seed))
    if format == "json":
        print_json({each.name: "".join(text) for each, text in zip(recipes, texts, strict=True)})
        return
    with output.open("w", encoding="utf-8") if output else nullcontext() as stream:
        if compare:
            _print_columns([each.name for each in recipes], texts, Console(file=stream))
        else:
            for piece in texts[0]:
                click.echo(piece, file=stream, nl=False)
            click.echo(file=stream)
    if output:
        click.echo(f"Written to {output}.", err=True)


def _recipes(workload: Workload, names: tuple[str, ...], compare: bool) -> list[Recipe]:
    """Return the float recipe and the one asked for (or the first quantized one), or the one asked for alone."""
    by_name = {recipe.name: recipe for recipe in workload.recipe}
    if names and names[0] not in by_name:
        raise ConfigurationError(
            f'Workload "{workload.name}" has no recipe "{names[0]}".', hint=f"It has: {', '.join(by_name)}."
        )
    floats = [recipe for recipe in workload.recipe if recipe.method == "none"]
    quantized = [by_name[name] for name in names] or [recipe for recipe in workload.recipe if recipe.method != "none"]
    if not compare:
        return quantized[:1] if names else (floats or quantized)[:1]
    if not floats or not quantized:
        raise ConfigurationError(
            f'Workload "{workload.name}" has no float recipe and quantized recipe to compare.',
            hint='Add a recipe with method = "none".',
        )
    return [floats[0], quantized[0]]


def _print_columns(headings: list[str], texts: list[Iterator[str]], console: Console) -> None:
    """Grow the texts side by side on a terminal; in a file they appear when they are whole."""
    grown = [""] * len(texts)
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        for pieces in zip_longest(*texts, fillvalue=""):
            grown = [text + piece for text, piece in zip(grown, pieces, strict=True)]
            table = Table(expand=True)
            for heading in headings:
                table.add_column(heading, ratio=1, overflow="fold")
            # A word of the text may look like rich's markup; Text is shown as it is.
            table.add_row(*map(Text, grown))
            live.update(table, refresh=console.is_terminal)
