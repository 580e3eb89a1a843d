"""``nightquant init``: run a model, and write a workload file for it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from pydantic import BaseModel, JsonValue

from flows.commands import FILE, format_option, print_json, print_tracebacks, store_flag, store_option, toml
from flows.commands.setup import print_preview
from flows.draft import (
    SECTIONS,
    Asked,
    sections,
    whole,
    with_size_obstacles,
    with_strict_gate,
    with_texts,
    without_obstacles,
)
from flows.sampled import compared
from flows.trial import Run, built, running
from storage.digest import JsonObject
from storage.errors import ConfigurationError
from tasks.results import CandidatePreview, Preview
from tasks.stages import propose
from tasks.workload import Workload, validated
from tasks.workload.base import REFERENCE

_LONGEST_VALUE = 300  # number of characters of a chosen value that are printed


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
        raise click.BadParameter(f"{value!r} is not module:callable or module:Class.method")
    return value


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
    "--data", default="", metavar="MODULE:CALLABLE|FILE|FOLDER", shell_complete=click.File().shell_complete,
    help="Read the data from this source: a callable, a file (.csv, .jsonl or .parquet), or a folder with one "
    "subfolder of images per class. If --model is a Hugging Face directory, you can omit --data; init then writes "
    "texts.csv for you to fill in.",
)  # fmt: skip
@click.option(
    "--target", default="", metavar="COLUMN", help="Predict this column (default for text classifiers: label)."
)
@click.option(
    "--collate",
    default="",
    metavar="MODULE:CALLABLE",
    callback=_reference,
    help="Collate samples into batches with this callable.",
)
@click.option(
    "--train", default="", metavar="MODULE:CALLABLE", callback=_reference, help="Train the model with this callable."
)
@click.option(
    "--train-argument", "train_arguments", multiple=True, metavar="NAME=VALUE", callback=_arguments,
    help="Pass this argument to the training callable; repeatable.",
)  # fmt: skip
@click.option(
    "--checkpoint", default="", metavar="FILE|URL|NAME", shell_complete=click.File().shell_complete,
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
@click.option("--all-keys", is_flag=True, help="Also write each unset key and its default value as a comment.")
@click.option(
    "-o", "--output", type=FILE, help="Write the workload to this file (default: a file named after the model)."
)
@format_option("text", "json")
@store_option
def command(model: str, all_keys: bool, output: Path | None, format: str, store: str, **options: Any) -> int:
    """Run a model on its data, and write a workload file for the model.

    The command looks for modules in the workload file's folder, then in the current folder. The workload file omits
    recipes and runtimes that the model does not support, and explains why. If you pass weights, the command then
    compares the candidates with the float model, and adds noticeable losses to the file. The command does not train
    the model or overwrite files. If the model, the data or the weights fail a check, the command writes nothing and
    exits with code 2.

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
        raise ConfigurationError(
            f"{path} already exists, and init does not overwrite files.", hint="Name another file with -o."
        )
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ConfigurationError(
            f"{path} cannot be written, because the folder {folder} does not exist.", hint="Create the folder first."
        )
    asked = Asked(model=model, folder=folder, **options)
    draft = None
    try:
        with running(store) as run:
            if (draft := _draft(path, asked, run, all_keys=all_keys)) is None:
                return 2
            # The file is complete without the estimates, so an interruption loses only what was not measured.
            for found in compared(draft.workload, draft.found, run):
                draft = draft.after(found)
                draft.rewrite()
        return 0
    finally:
        if draft is not None:
            draft.report(format, store)


@dataclass(frozen=True)
class _Draft:
    """A workload file that has been written, with the trial and the reasons behind its content."""

    path: Path
    document: JsonObject
    found: Preview
    reasons: dict[str, str]
    to_do: str
    all_keys: bool

    @property
    def workload(self) -> Workload:
        return validated(self.path, self.document)

    def text(self) -> str:
        workload = self.workload
        return render(self.document, workload, self.found, self.to_do, self.reasons, all_keys=self.all_keys)

    def after(self, found: Preview) -> _Draft:
        """Return the draft with further results; candidates that failed are left out."""
        return replace(self, found=found, document=without_obstacles(self.document, found))

    def rewrite(self) -> None:
        """Replace the file at once, so that an interruption cannot leave half a file."""
        new = self.path.with_name(f".{self.path.name}.new")
        new.write_text(self.text(), encoding="utf-8")
        new.replace(self.path)

    def report(self, format: str, store: str) -> None:
        if format == "json":
            print_json({"file": self.path, "chosen": self.reasons, **self.found.model_dump(mode="json")})
            return
        print_preview(self.found.model_copy(update={"problems": ()}))
        for place, reason in self.reasons.items():
            section, _, key = place.partition(".")
            given = self.document[section]
            value = textwrap.shorten(toml(given.get(key)), _LONGEST_VALUE, placeholder=" …")
            decision = f"Chose {place} = {value}" if key in given else f"Left out {place}"
            click.echo(f"{decision}: {reason}.")
        click.echo(f"Written to {self.path}.{self.to_do and f' To do: {self.to_do}'} Next:")
        click.echo(f"  nightquant nightly --workload {self.path} --profile quick{store_flag(store)}")


def _draft(path: Path, asked: Asked, run: Run, *, all_keys: bool) -> _Draft | None:
    """Write a workload file from a trial of the model; if the model does not work, print the problems instead."""
    to_do = ""
    with ExitStack() as undo:
        if not asked.data:
            asked = with_texts(asked)
            undo.callback(Path(asked.data).unlink)
            to_do = f"fill {asked.path(asked.data)} with your texts, or name your own table in [data]."
        document = whole(re.sub(r"[^a-z0-9.-]+", "-", path.stem.lower()), sections(asked))
        proposal = run(propose, f"{path}: running the model", validated(path, document))
        for name, keys in proposal.sections.items():
            # Keep the metric that the user chose.
            chosen = {key: value for key, value in keys.items() if key != "metric" or not asked.metric}
            document[name] = {**document[name], **chosen}
        found = built(validated(path, document), run)
        print_tracebacks(found.tracebacks)
        if not found.model:
            for problem in found.problems:
                click.echo(f"nightquant: {problem}", err=True)
            return None
        found = with_size_obstacles(document, found)
        document, why = with_strict_gate(without_obstacles(document, found), found)
        draft = _Draft(path, document, found, {**proposal.reasons, **why}, to_do, all_keys)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(draft.text())
        undo.pop_all()
    return draft


def render(
    document: JsonObject,
    workload: Workload,
    found: Preview,
    to_do: str = "",
    reasons: Mapping[str, str] = MappingProxyType({}),
    *,
    all_keys: bool = False,
) -> str:
    """Return the text of the workload file, with comments that give the reasons for chosen and omitted keys.

    Parameters
    ----------
    to_do
        One-line description of the work that the user still has to do.
    reasons
        Reasons for setting or omitting keys, keyed by ``section.key``.
    all_keys
        Whether to describe every key and to add unset keys as comments with their defaults.
    """
    lines = [
        "# Written by `nightquant init`. To try it out after a change: nightquant workloads --workload FILE --check",
        "# A line `# key = value` shows a default. docs/workload-file.md has every key."
        if all_keys
        else "# All other keys have their defaults: docs/workload-file.md, or `nightquant init --all-keys`.",
        *([f"# To do: {to_do}"] if to_do else []),
        *(f"{key} = {toml(document[key])}" for key in ("schema_version", "name", "description", "domain")),
    ]
    section = partial(_section, reasons=reasons, all_keys=all_keys)
    for name in SECTIONS:
        if all_keys or document[name] or (name == "evaluate" and found.reference):
            lines += section(name, getattr(workload, name), document[name])
        if name == "model":
            lines += [
                f"# {found.parameters:,} parameters. One call takes {found.inputs}",
                f"# and gives {found.outputs}.",
            ]
        if name == "evaluate" and found.reference:
            lines.append(f"# {found.reference.describe()}")
    for keys, recipe in zip(document["recipe"], workload.recipe, strict=True):
        tried = [each for each in found.candidates if each.candidate.partition("/")[0] == recipe.name]
        lines += section("recipe", recipe, keys, repeated=True)
        lines += [f"# {line}" for each in tried for line in _remarks(each)]
    kept = {recipe.name for recipe in workload.recipe}
    left = [each for each in found.candidates if each.candidate.partition("/")[0] not in kept]
    lines += ["", *(f"# {line}" for each in left for line in _remarks(each))] if left else []
    lines += section("benchmark", workload.benchmark, document["benchmark"])
    lines += section("gate", workload.gate, document["gate"])
    return "\n".join(lines) + "\n"


def _section(
    name: str,
    section: BaseModel,
    given: Mapping[str, object],
    *,
    reasons: Mapping[str, str],
    all_keys: bool,
    repeated: bool = False,
) -> Iterator[str]:
    yield ""
    yield f"[[{name}]]" if repeated else f"[{name}]"
    fields = type(section).model_fields
    for key in sorted(fields, key=lambda each: each not in given):
        if key in ("kind", "method", "name") and key in given:
            yield f"{key} = {toml(given[key])}"
            continue
        if all_keys and fields[key].description:
            yield from textwrap.wrap(str(fields[key].description), 100, initial_indent="# ", subsequent_indent="# ")
        if reason := reasons.get(f"{name}.{key}"):
            yield f"# Chosen: {reason}."
        if key in given:
            yield f"{key} = {toml(given[key])}"
        elif all_keys:
            default = None if fields[key].is_required() else fields[key].get_default(call_default_factory=True)
            is_value = default is not None and not isinstance(default, BaseModel)
            yield f"# {key} = {toml(default) if is_value else '…'}"


def _remarks(tried: CandidatePreview) -> Iterator[str]:
    if tried.obstacle:
        yield f"Left out, {tried.candidate}: {tried.obstacle.partition(chr(10))[0]}"
    if tried.loss is not None:
        yield f"{tried.candidate} {tried.loss.describe()}"
    if tried.undecided:
        yield f"{tried.candidate}: {tried.undecided}"
    if tried.uncompared:
        yield f"{tried.candidate} was not compared with the float model: {tried.uncompared}"
    left = [f"{module.module or 'the model'} ({module.type})" for module in tried.coverage if not module.quantized]
    if left and len(left) < len(tried.coverage):
        yield f"Stays float with {tried.candidate.partition('/')[2]}: {', '.join(left[:5])}{', …' if left[5:] else ''}"
