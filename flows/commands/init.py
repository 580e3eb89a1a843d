"""``nightquant init``: a workload file for a model, written by running it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import click
from pydantic import JsonValue
from rich.console import Console

from flows.commands import format_option, print_json, progress_of, store_flag, store_option
from flows.draft import Asked, sections, whole, with_size_obstacles, with_texts, without_obstacles
from flows.draft_text import render, toml
from flows.preview import in_worker, preview_lines
from storage.digest import JsonObject
from storage.errors import ConfigurationError
from tasks.stages import preview, propose
from tasks.workload import validated
from tasks.workload.base import REFERENCE


def _arguments(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for each in value:
        name, equals, text = each.partition("=")
        if not equals:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def _reference(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value and not re.match(REFERENCE, value):
        raise click.BadParameter(f"{value!r} is not module:callable")
    return value


@click.command()
@click.option(
    "--model", required=True, metavar="MODULE:CALLABLE|NAME|DIR",
    help="Your module, a model of torchvision, or a Hugging Face directory.",
)  # fmt: skip
@click.option(
    "--argument", "arguments", multiple=True, metavar="NAME=VALUE", callback=_arguments,
    help="What the callable is given, as JSON or text; repeatable.",
)  # fmt: skip
@click.option(
    "--data", default="", metavar="MODULE:CALLABLE|FILE|FOLDER", shell_complete=click.File().shell_complete,
    help="Your callable that gives the splits, a .csv, .jsonl or .parquet file, or pictures in a folder a class "
    "(default with a Hugging Face directory: a table to fill in, which is written).",
)  # fmt: skip
@click.option("--target", default="", metavar="COLUMN", help="Column to predict (default for texts: label).")
@click.option("--collate", default="", metavar="MODULE:CALLABLE", callback=_reference, help="Makes batches of items.")
@click.option("--train", default="", metavar="MODULE:CALLABLE", callback=_reference, help="Trains the model.")
@click.option(
    "--train-argument", "train_arguments", multiple=True, metavar="NAME=VALUE", callback=_arguments,
    help="What it is given besides; repeatable.",
)  # fmt: skip
@click.option(
    "--checkpoint", default="", metavar="FILE|URL|NAME", shell_complete=click.File().shell_complete,
    help="Your weights; for a model of torchvision's also theirs by name, such as ResNet18_Weights.IMAGENET1K_V1.",
)  # fmt: skip
@click.option(
    "--metric", default="", metavar="NAME|MODULE:CALLABLE", help="What is measured (default: by the targets)."
)
@click.option("--lower-is-better", is_flag=True, help="Of a metric of your own (default: higher is).")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file (default: by the model's name)."
)
@format_option("text", "json")
@store_option
def command(
    model: str,
    arguments: dict[str, JsonValue],
    data: str,
    target: str,
    collate: str,
    train: str,
    train_arguments: dict[str, JsonValue],
    checkpoint: str,
    metric: str,
    lower_is_better: bool,
    output: Path | None,
    format: str,
    store: str,
) -> int:
    """Write a commented workload file for a model, after running it on its data.

    Modules are looked for in the file's folder, then here. Recipes and runtimes that the model cannot take are left
    out, and the file says why. Nothing is trained, and no file is overwritten. Exit code 2 where model, data or weights
    do not work: then nothing is written.

    \b
    Example:
      nightquant init --model gestures:Gestures --data gestures:read --collate gestures:pad --train gestures:train
      nightquant init --model power:build --argument features=4 --data power.csv --target power --train power:train
      nightquant init --model resnet18 --checkpoint weights.pth --data photos
      nightquant init --model my-bert --data texts.parquet --target topic
    """
    called = Path(model).resolve().name if Path(model).is_dir() else model.partition(":")[0].rpartition(".")[2]
    name = re.sub(r"[^a-z0-9.-]+", "-", called.lower()).strip("-.") or "model"
    path = output or Path(f"{name}.toml")
    if path.exists():
        raise ConfigurationError(f"{path} is there already; init overwrites nothing.", hint="Name another: -o FILE.")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ConfigurationError(f"{path} cannot be written: {folder} is no folder.", hint="Make it first.")
    asked = Asked(
        model, data, folder, arguments, collate, target, checkpoint, train, train_arguments, metric, lower_is_better
    )
    to_do = ""
    with ExitStack() as undo:
        if not data:
            asked = with_texts(asked)
            undo.callback(Path(asked.data).unlink)
            to_do = f"fill {asked.path(asked.data)} with your texts, or name your own table in [data]."
        document = whole(re.sub(r"[^a-z0-9.-]+", "-", path.stem.lower()), sections(asked))
        with progress_of(f"{path}: running the model") as progress:
            proposal = in_worker(propose, validated(path, document), store, progress)
            document = _merged(document, proposal.sections, keep_metric=bool(metric))
            found = in_worker(preview, validated(path, document), store, progress)
        if not found.model:
            for problem in found.problems:
                click.echo(f"nightquant: {problem}", err=True)
            return 2
        found = with_size_obstacles(document, found)
        document = without_obstacles(document, found)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(render(document, validated(path, document), found, to_do, proposal.reasons))
        undo.pop_all()
    if format == "json":
        print_json({"file": path, "chosen": dict(proposal.reasons), **found.model_dump(mode="json")})
        return 0
    for line in preview_lines(found.model_copy(update={"problems": ()})):
        Console().print(line, highlight=False, soft_wrap=True)
    for place, reason in proposal.reasons.items():
        section, _, key = place.partition(".")
        click.echo(f"Chose {place} = {toml(document[section][key])}: {reason}.")
    click.echo(f"Written to {path}.{to_do and f' To do: {to_do}'} Next:")
    click.echo(f"  nightquant nightly --workload {path} --profile quick{store_flag(store)}")
    return 0


def _merged(document: JsonObject, proposed: Mapping[str, Mapping[str, object]], *, keep_metric: bool) -> JsonObject:
    """Return the document with the keys that data and weights decide, except for a metric that the user chose."""
    changed = {
        name: {**document[name], **{key: value for key, value in keys.items() if not (key == "metric" and keep_metric)}}
        for name, keys in proposed.items()
    }
    return document | changed
