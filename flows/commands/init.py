"""``nightquant init``: run a model, and write a workload file for it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import JsonValue

from flows.commands import FILE, print_tracebacks, store_flag, store_option, toml
from flows.commands.setup import print_preview, warnings_about
from flows.draft import SECTIONS, Asked, completed, sections, with_strict_gate, without_obstacles
from flows.trial import Run, built, compared, running
from storage.digest import JsonObject
from storage.errors import ConfigurationError, InputError
from tasks.run.stages import propose
from tasks.values.results import CandidatePreview, Preview
from tasks.workload import Workload, validated

_LONGEST_VALUE = 300  # number of characters of a chosen value that are printed
_FILES = "the callable's files are unknown; list them, because a run does not notice changes of other files"


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


@click.command()
@click.option(
    "--model", required=True, metavar="MODULE:CALLABLE|NAME|DIR",
    help="Use this model: a callable, a torchvision model, or a Hugging Face directory.",
)  # fmt: skip
@click.option(
    "--argument", "arguments", multiple=True, metavar="NAME=VALUE", callback=_arguments,
    help="Pass this argument to the model's callable, with VALUE as JSON or text; repeatable.",
)  # fmt: skip
@click.option(
    "--data", required=True, metavar="MODULE:CALLABLE|FILE|FOLDER",
    help="Read the data from this source: a callable, a file (.csv, .jsonl or .parquet), or a folder with one "
    "subfolder of images per class.",
)  # fmt: skip
@click.option(
    "--target", default="", metavar="COLUMN", help="Predict this column (default for text classifiers: label)."
)
@click.option(
    "--collate",
    default="",
    metavar="MODULE:CALLABLE",
    help="Collate samples into batches with this callable.",
)
@click.option("--train", default="", metavar="MODULE:CALLABLE", help="Train the model with this callable.")
@click.option(
    "--train-argument", "train_arguments", multiple=True, metavar="NAME=VALUE", callback=_arguments,
    help="Pass this argument to the training callable; repeatable.",
)  # fmt: skip
@click.option(
    "--checkpoint", default="", metavar="FILE|URL|NAME",
    help="Use these weights: a file, a URL, or torchvision weights such as ResNet18_Weights.IMAGENET1K_V1.",
)  # fmt: skip
@click.option(
    "--metric",
    default="",
    metavar="NAME|MODULE:CALLABLE",
    help="Measure quality with this metric (default: a metric that suits the targets).",
)
@click.option(
    "--lower-is-better",
    is_flag=True,
    help="Treat lower values of your own metric as better.",
)
@click.option(
    "-o", "--output", type=FILE, help="Write the workload to this file (default: a file named after the model)."
)
@store_option
def command(model: str, output: Path | None, store: str, **options: Any) -> int:
    """Run a model on its data, and write a workload file for the model.

    The command looks for modules in the workload file's folder, then in the current folder. The workload file omits
    recipes and runtimes that the model does not support, and explains why. If you pass weights, the command then
    compares the candidates with the float model, and adds noticeable losses to the file. The command does not train
    the model or overwrite files. If the model, the data or the weights fail a check, the command writes nothing and
    exits with code 2.

    \b
    Example:
      nightquant init --model gestures:Gestures --data gestures:read --collate gestures:pad --train gestures:train
      nightquant init --model power:build --argument features=4 --data power.csv --target power --checkpoint power.pth
      nightquant init --model resnet18 --checkpoint weights.pth --data photos
      nightquant init --model my-bert --data texts.parquet --target topic
    """
    called = Path(model).resolve().name if Path(model).is_dir() else model.partition(":")[0].rpartition(".")[2]
    name = re.sub(r"[^a-z0-9.-]+", "-", called.lower()).strip("-.") or "model"
    path = output or Path(f"{name}.toml")
    if path.exists():
        raise ConfigurationError(
            f"{path} already exists, and init does not overwrite files.", hint="Name another file with -o."
        )
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ConfigurationError(
            f"{path} cannot be written, because the folder {folder} does not exist.", hint="Create the folder first."
        )
    with running(store) as run:
        return _write(path, Asked(model=model, folder=folder, **options), run, store)


def _write(path: Path, asked: Asked, run: Run, store: str) -> int:
    """Write a workload file after a trial of the model; if the model does not work, print the problems instead."""
    document = completed(re.sub(r"[^a-z0-9.-]+", "-", path.stem.lower()), sections(asked))
    try:
        proposal = run(propose, f"{path}: running the model", validated(path, document))
    except InputError as error:  # the request is wrong: nothing has been written
        raise ConfigurationError(error.message, hint=error.hint) from error
    for name, keys in proposal.sections.items():
        # Keep the metric that the user chose.
        chosen = {key: value for key, value in keys.items() if key != "metric" or not asked.metric}
        document[name] = {**document[name], **chosen}
    found = built(validated(path, document), run)
    print_tracebacks(found.tracebacks)
    if not found.model:
        for problem in found.problems:
            click.echo(f"nightquant: {problem}", err=True)
        return 2
    document, why = with_strict_gate(without_obstacles(document, found), found)
    unknown = {"data.files": _FILES} if document["data"].get("files") == [] else {}
    reasons = {**unknown, **proposal.reasons, **why}
    with path.open("x", encoding="utf-8") as stream:
        stream.write(render(document, validated(path, document), found, reasons))
    # The file is complete without the comparisons, so an interruption loses only what was not measured.
    try:
        for further in compared(validated(path, document), found, run):
            found = further
            document = without_obstacles(document, found)
            new = path.with_name(f".{path.name}.new")
            new.write_text(render(document, validated(path, document), found, reasons), encoding="utf-8")
            new.replace(path)
    finally:
        _report(path, document, found, reasons, store)
    return 0


def _report(path: Path, document: JsonObject, found: Preview, reasons: Mapping[str, str], store: str) -> None:
    print_preview(found.model_copy(update={"problems": ()}))
    for place, reason in reasons.items():
        section, _, key = place.partition(".")
        given = document[section]
        value = textwrap.shorten(toml(given.get(key)), _LONGEST_VALUE, placeholder=" …")
        click.echo(f"{f'Chose {place} = {value}' if key in given else f'Left out {place}'}: {reason}.")
    click.echo(f"Written to {path}. Next:")
    click.echo(f"  nightquant nightly --workload {path} --profile quick{store_flag(store)}")


def render(document: JsonObject, workload: Workload, found: Preview, reasons: Mapping[str, str]) -> str:
    """Return the text of the workload file, with the reasons for keys (``section.key``) as comments."""
    lines = [
        "# Written by `nightquant init`. To try it out after a change: nightquant workloads --workload FILE --check",
        "# All other keys have their defaults: docs/workload-file.md.",
        *(f"{key} = {toml(document[key])}" for key in ("schema_version", "name", "description", "domain")),
    ]
    for name in SECTIONS:
        if document[name] or (name == "evaluate" and found.reference):
            lines += _section(name, document[name], reasons)
        if name == "model":
            lines += [
                f"# {found.parameters:,} parameters. One call takes {found.inputs}",
                f"# and gives {found.outputs}.",
            ]
        if name == "evaluate" and found.reference:
            lines.append(f"# {found.reference.describe()}")
    for keys, recipe in zip(document["recipe"], workload.recipe, strict=True):
        tried = [each for each in found.candidates if each.candidate.recipe == recipe.name]
        lines += ["", "[[recipe]]", *(f"{key} = {toml(value)}" for key, value in keys.items())]
        lines += [f"# {line}" for each in tried for line in _remarks(each)]
    kept = {recipe.name for recipe in workload.recipe}
    left = [each for each in found.candidates if each.candidate.recipe not in kept]
    lines += ["", *(f"# {line}" for each in left for line in _remarks(each))] if left else []
    lines += _section("benchmark", document["benchmark"], reasons)
    lines += _section("gate", document["gate"], reasons)
    return "\n".join(lines) + "\n"


def _section(name: str, keys: Mapping[str, object], reasons: Mapping[str, str]) -> Iterator[str]:
    yield ""
    yield f"[{name}]"
    for key, value in keys.items():
        if reason := reasons.get(f"{name}.{key}"):
            yield f"# Chosen: {reason}."
        yield f"{key} = {toml(value)}"


def _remarks(tried: CandidatePreview) -> Iterator[str]:
    if tried.obstacle:
        yield f"Left out, {tried.candidate}: {tried.obstacle.partition(chr(10))[0]}"
    yield from warnings_about(tried)
