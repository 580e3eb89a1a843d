"""Workload files written for the user: what is known of a model and its data becomes sections, with comments."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import JsonValue

from storage.errors import ConfigurationError, first_line
from storage.messages import did_you_mean
from tasks.domains import DOMAINS
from tasks.domains.image_classification.sections import TorchvisionModel
from tasks.machine import installed_version
from tasks.quantize.methods import METHODS
from tasks.results import Preview
from tasks.runtimes import RUNTIMES
from tasks.workload.base import REFERENCE
from tasks.workload.recipe import Recipe

# Tables of a TOML file by their names: Any.
Document = dict[str, Any]
_TABLES = (".csv", ".jsonl", ".parquet")
SECTIONS = ("data", "model", "checkpoint", "evaluate")
_RECIPES: tuple[Document, ...] = (
    {"name": "float", "method": "none"},
    {"name": "dynamic-int8", "method": "dynamic", "modules": ["LSTM", "GRU", "Linear"]},
    {"name": "static-int8", "method": "static"},
)


@dataclass(frozen=True)
class Asked:
    """What the user says of a model; ``folder`` is that of the file to write, "" what was not said."""

    model: str
    data: str
    folder: Path
    arguments: dict[str, JsonValue] = field(default_factory=dict)
    collate: str = ""
    target: str = ""
    checkpoint: str = ""
    train: str = ""
    train_arguments: dict[str, JsonValue] = field(default_factory=dict)
    metric: str = ""
    lower_is_better: bool = False

    def path(self, given: str) -> str:
        """A path as the workload file names it; an address as it is."""
        return given if "://" in given else os.path.relpath(Path(given).expanduser().absolute(), self.folder.absolute())


def sections(asked: Asked) -> Document:
    """``domain`` and the sections that say what there is, of the first draft that knows such a model.

    Raises
    ------
    ConfigurationError
        No draft does, or something is missing that it needs.
    """
    for knows, draft in _DRAFTS:
        if knows(asked):
            return draft(asked)
    known = get_args(TorchvisionModel)
    raise ConfigurationError(
        f'--model "{asked.model}" is no model that init knows{did_you_mean(asked.model, known)}.',
        hint=f"Expected module:callable, or with pictures one of torchvision's: {', '.join(known)}.",
    )


def _pictures(asked: Asked) -> Document:
    if re.match(REFERENCE, asked.model):
        model: Document = {"kind": "factory", "factory": asked.model, "arguments": asked.arguments}
    else:
        model = {"kind": "torchvision", "name": asked.model, **asked.arguments}
    return {
        "domain": "image-classification",
        "data": {"kind": "image-folder", "uri": asked.path(asked.data)},
        "model": model,
        "checkpoint": _weights(asked) or {"kind": "train"},
        "evaluate": {},
    }


def _module(asked: Asked) -> Document:
    if asked.data.endswith(_TABLES):
        if not asked.target:
            raise ConfigurationError("--target is missing.", hint="Name the column of the table that is predicted.")
        columns = _columns(Path(asked.data))
        if asked.target not in columns:
            raise ConfigurationError(
                f'{asked.data} has no column "{asked.target}"{did_you_mean(asked.target, columns)}.',
                hint=f"It has: {', '.join(columns)}.",
            )
        features = [name for name, numbers in columns.items() if numbers and name != asked.target]
        data: Document = {"kind": Path(asked.data).suffix[1:], "uri": asked.path(asked.data), "features": features}
        data |= {"target": asked.target} | ({"split": "split"} if "split" in columns else {})
    elif re.match(REFERENCE, asked.data):
        data = {"kind": "factory", "factory": asked.data} | ({"collate": asked.collate} if asked.collate else {})
    else:
        raise ConfigurationError(
            f'--data "{asked.data}" is no data that init knows.',
            hint="Expected module:callable, a .csv, .jsonl or .parquet file, or pictures in a folder a class.",
        )
    own = {"higher_is_better": not asked.lower_is_better} if ":" in asked.metric else {}
    return {
        "domain": "custom",
        "data": data,
        "model": {"kind": "factory", "factory": asked.model, "arguments": asked.arguments},
        "checkpoint": _weights(asked) or {"kind": "seeded"},
        "evaluate": {"metric": asked.metric or "loss", **own},
    }


def _weights(asked: Asked) -> Document:
    if asked.checkpoint:
        return {"kind": "uri", "uri": asked.path(asked.checkpoint)}
    given = {"arguments": asked.train_arguments} if asked.train_arguments else {}
    return {"kind": "train", "train": asked.train, **given} if asked.train else {}


def _columns(path: Path) -> dict[str, bool]:
    """Columns of a table, and whether they hold numbers."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet as pq

    try:
        match path.suffix:
            case ".parquet":
                schema = pq.read_schema(path)
            case ".csv":
                schema = pyarrow.csv.open_csv(path).schema
            case _:
                schema = pyarrow.json.open_json(path).schema
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(f"{path}: cannot be read as a table: {first_line(error)}.") from error
    numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean
    return {column.name: any(holds(column.type) for holds in numbers) for column in schema}


# A new kind of model, a Hugging Face directory say, is one line: whether a draft knows it, and what makes it.
_DRAFTS: tuple[tuple[Callable[[Asked], bool], Callable[[Asked], Document]], ...] = (
    (
        lambda asked: (
            Path(asked.data).is_dir()
            and bool(asked.model in get_args(TorchvisionModel) or re.match(REFERENCE, asked.model))
        ),
        _pictures,
    ),
    (lambda asked: bool(re.match(REFERENCE, asked.model)), _module),
)


def whole(name: str, known: Document) -> Document:
    """The document with every recipe that the domain's models may take, for the runtimes that are installed."""
    recipes = []
    for keys in _RECIPES:
        lacks = METHODS[str(keys["method"])].needs
        if all(isinstance(DOMAINS[known["domain"]], need) for need in lacks):
            recipes.append(keys | {"runtimes": _runtimes(Recipe.model_validate(keys))})
    head = {"schema_version": 1, "name": name, "description": f"{name}, written by nightquant init"}
    return {
        **head,
        **known,
        "recipe": recipes,
        "benchmark": {"baseline": f"float/{recipes[0]['runtimes'][0]}"},
        "gate": {"objective": "smallest", "quality_drop": "relative", "max_quality_drop": 0.05, "min_size_ratio": 1.2},
    }


def without_obstacles(document: Document, found: Preview) -> Document:
    """Leave out what cannot be had.

    Raises
    ------
    ConfigurationError
        No float candidate is left to compare with.
    """
    good = [each.candidate for each in found.candidates if not each.obstacle]
    kept = []
    for recipe in document["recipe"]:
        runtimes = [runtime for runtime in recipe["runtimes"] if f"{recipe['name']}/{runtime}" in good]
        kept += [recipe | {"runtimes": runtimes}] if runtimes else []
    if not kept or kept[0]["name"] != "float":
        raise ConfigurationError(
            "No runtime executes the float model:\n" + "\n".join(f"  {problem}" for problem in found.problems)
        )
    return document | {"recipe": kept, "benchmark": {"baseline": f"float/{kept[0]['runtimes'][0]}"}}


def _runtimes(recipe: Recipe) -> list[str]:
    # What can be deployed, and is made in seconds.
    quick = [name for name in RUNTIMES if RUNTIMES[name].hands_over and not RUNTIMES[name].compiles]
    wanted = [name for name in quick if not RUNTIMES[name].obstacle(recipe)]
    return [name for name in wanted if all(map(installed_version, RUNTIMES[name].distributions))]
