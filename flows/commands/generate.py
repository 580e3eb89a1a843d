"""``nightquant generate``: text sampled from a word language model, float or quantized."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flows.options import recipe_option, store_option, workload_option

if TYPE_CHECKING:
    from rich.table import Table

    from storage.artifacts import ArtifactStore
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
@store_option
def command(
    workload: tuple[str, ...],
    recipe: tuple[str, ...],
    words: int,
    temperature: float,
    seed: int,
    output: Path | None,
    compare: bool,
    store: str,
) -> None:
    """Sample text from a word language model; what is missing in the store is trained and quantized first.

    \b
    Example:
      nightquant generate --workload word-lm --words 200 --temperature 0.8
      nightquant generate --workload word-lm --recipe dynamic-int8 --compare
    """
    from storage.artifacts import ArtifactStore
    from storage.errors import ConfigurationError

    if len(workload) > 1 or len(recipe) > 1:
        raise ConfigurationError(
            "One workload and one recipe at a time, please.", hint="Use --compare for float beside it."
        )
    if output is not None and not output.parent.is_dir():  # said before the work, not after it
        raise ConfigurationError(f"{output} cannot be written: {output.parent} is no folder.", hint="Make it first.")
    chosen = _workload(workload)
    recipes = _recipes(chosen, recipe, compare)
    texts = [_text(chosen, one, ArtifactStore(store), words, temperature, seed) for one in recipes]
    if compare:
        _print_columns([one.name for one in recipes], texts, output)
    else:
        _print_stream(texts[0], output)


def _workload(names: tuple[str, ...]) -> Workload:
    from flows.request import NightlyRequest

    return NightlyRequest(workloads=names or ("word-lm",)).load_workloads()[0]


def _recipes(workload: Workload, names: tuple[str, ...], compare: bool) -> list[Recipe]:
    """The float recipe and the one that was asked for (or the first quantized one), or the one asked for alone."""
    from storage.errors import ConfigurationError

    by_name = {recipe.name: recipe for recipe in workload.recipe}
    if names and names[0] not in by_name:
        raise ConfigurationError(
            f'Workload "{workload.name}" has no recipe "{names[0]}".', hint=f"It has: {', '.join(by_name)}."
        )
    floats: list[Recipe] = [recipe for recipe in workload.recipe if recipe.method == "none"]
    quantized = [by_name[name] for name in names] or [one for one in workload.recipe if one.method != "none"]
    if not compare:
        return quantized[:1] if names else (floats or quantized)[:1]
    if not floats or not quantized:
        raise ConfigurationError(
            f'Workload "{workload.name}" has no float recipe and quantized recipe to compare.',
            hint='Add a recipe with method = "none".',
        )
    return [floats[0], quantized[0]]


def _text(
    workload: Workload, recipe: Recipe, store: ArtifactStore, words: int, temperature: float, seed: int
) -> Iterator[str]:
    from rich.console import Console

    from flows.console import reporter_for
    from tasks.domains.language_model.generate import generate
    from tasks.job import Workspace

    label = f"{workload.name} · {recipe.name}: preparing"
    with reporter_for(Console(stderr=True)) as reporter:

        def progress(done: float, total: float, unit: str = "") -> None:
            reporter.progressed(label, done, total, unit)

        workspace = Workspace(store, progress)
        return generate(workload, recipe, workspace, words=words, temperature=temperature, seed=seed)


def _print_stream(pieces: Iterator[str], output: Path | None) -> None:
    with ExitStack() as stack:
        stream = stack.enter_context(output.open("w", encoding="utf-8")) if output else None
        for piece in pieces:
            click.echo(piece, file=stream, nl=False)
        click.echo(file=stream)
    if output:
        click.echo(f"Written to {output}.", err=True)


def _print_columns(headings: list[str], texts: list[Iterator[str]], output: Path | None) -> None:
    """Grow the texts side by side on a terminal; in a file they appear when they are whole."""
    from itertools import zip_longest

    from rich.console import Console
    from rich.live import Live

    with ExitStack() as stack:
        stream = stack.enter_context(output.open("w", encoding="utf-8")) if output else None
        console = Console(file=stream)
        grown = [""] * len(texts)
        with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
            for pieces in zip_longest(*texts, fillvalue=""):
                grown = [text + piece for text, piece in zip(grown, pieces, strict=True)]
                live.update(_columns(headings, grown), refresh=console.is_terminal)
    if output:
        click.echo(f"Written to {output}.", err=True)


def _columns(headings: list[str], texts: list[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(expand=True)
    for heading in headings:
        table.add_column(heading, ratio=1, overflow="fold")
    # A word of the text may look like rich's markup; Text is shown as it is.
    table.add_row(*(Text(text) for text in texts))
    return table
