"""Draft workload files: derive their sections from a description of a model and its data."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from pydantic import JsonValue

from storage.digest import JsonObject
from storage.errors import ConfigurationError, did_you_mean
from tasks.domains.image_classification import TorchvisionModel
from tasks.domains.text_encoder import is_classifier, read_config, read_pooling
from tasks.environment.machine import installed_version
from tasks.runtimes.base import runtime_named
from tasks.values.results import Preview
from tasks.workload.base import REFERENCE
from tasks.workload.recipe import METHODS, RUNTIMES, CandidateName, Recipe
from tasks.workload.workload import DOMAINS, FASTEST_FLOAT

_TABLES = (".csv", ".jsonl", ".parquet")
SECTIONS = ("data", "model", "checkpoint", "evaluate")
_POINTS = 0.5  # largest allowed loss of a percentage metric, in percentage points
_SHARE = 0.01  # largest allowed loss of any other metric, as a fraction of the quality
_RECIPES: tuple[JsonObject, ...] = (
    {"name": "float", "method": "none"},
    {"name": "dynamic-int8", "method": "dynamic", "modules": ["LSTM", "GRU", "Linear"]},
    {"name": "static-int8", "method": "static"},
)


@dataclass(frozen=True)
class Asked:
    """A user's description of a model. ``folder`` is the workload file's folder; an omitted option is ``""``."""

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

    def path(self, uri: str) -> str:
        """Return a local path relative to the workload file's folder; leave a URL unchanged."""
        return uri if "://" in uri else os.path.relpath(Path(uri).expanduser().absolute(), self.folder.absolute())


def sections(request: Asked) -> JsonObject:
    """Return the ``domain`` key and the sections that describe the model and the data."""
    names = get_args(TorchvisionModel)
    is_callable = re.match(REFERENCE, request.model) is not None
    if Path(request.data).is_dir() and (is_callable or request.model in names):
        return _pictures(request)
    if Path(request.model).is_dir():
        return _encoder(request)
    if is_callable:
        return _module(request)
    raise ConfigurationError(
        f'init does not support the model "{request.model}"{did_you_mean(request.model, names)}.',
        hint="Set --model to module:callable, a Hugging Face directory or, for images, one of torchvision's models: "
        f"{', '.join(names)}.",
    )


def _pictures(request: Asked) -> JsonObject:
    if re.match(REFERENCE, request.model):
        model: JsonObject = {"kind": "factory", "factory": request.model, "arguments": request.arguments}
    else:
        model = {"kind": "torchvision", "name": request.model, **request.arguments}
    weights = _weights(request) or {"kind": "train"}
    if re.fullmatch(r"\w+_Weights\.\w+", request.checkpoint) and not Path(request.checkpoint).exists():
        weights = {"kind": "torchvision-weights", "weights": request.checkpoint}
    return {
        "domain": "image-classification",
        "data": {"kind": "image-folder", "uri": request.path(request.data)},
        "model": model,
        "checkpoint": weights,
        "evaluate": {},
    }


def _module(request: Asked) -> JsonObject:
    if request.data.endswith(_TABLES):
        if not request.target:
            raise ConfigurationError("--target is missing.", hint="Use --target to name the column to predict.")
        columns = _columns(request, request.target)
        features = [name for name, numbers in columns.items() if numbers and name != request.target]
        data = _table(request, columns) | {"features": features, "target": request.target}
    elif re.match(REFERENCE, request.data):
        data = {"kind": "factory", "factory": request.data, "files": []}
        data |= {"collate": request.collate} if request.collate else {}
    else:
        raise ConfigurationError(
            f'init does not support the data "{request.data}".',
            hint="Set --data to module:callable, a .csv, .jsonl or .parquet file, or a folder with one subfolder of "
            "images per class.",
        )
    direction = {"higher_is_better": not request.lower_is_better} if ":" in request.metric else {}
    return {
        "domain": "custom",
        "data": data,
        "model": {"kind": "factory", "factory": request.model, "arguments": request.arguments},
        "checkpoint": _weights(request) or {"kind": "seeded"},
        "evaluate": {"metric": request.metric or "loss", **direction},
    }


def _columns(request: Asked, target: str) -> dict[str, bool]:
    """Return whether each column is numeric; refuse a `target` that is not among the columns."""
    if not request.data.endswith(_TABLES):
        raise ConfigurationError(
            f'--data "{request.data}" is not a table.',
            hint=f"Pass a file in one of these formats: {', '.join(_TABLES)}.",
        )
    from tasks.data.columns import columns_of

    columns = columns_of(Path(request.data))
    if target and target not in columns:
        raise ConfigurationError(
            f'{request.data} does not have a column "{target}"{did_you_mean(target, columns)}.',
            hint=f"Use --target to name one of these columns: {', '.join(columns)}.",
        )
    return columns


def _table(request: Asked, columns: Collection[str]) -> JsonObject:
    table = {"kind": Path(request.data).suffix[1:], "uri": request.path(request.data)}
    return table | ({"split": "split"} if "split" in columns else {})


def _weights(request: Asked) -> JsonObject:
    if request.checkpoint:
        return {"kind": "uri", "uri": request.path(request.checkpoint)}
    arguments = {"arguments": request.train_arguments} if request.train_arguments else {}
    return {"kind": "train", "train": request.train, **arguments} if request.train else {}


def _encoder(request: Asked) -> JsonObject:
    folder = Path(request.model)
    classifies = is_classifier(read_config(folder))
    target = request.target or ("label" if classifies else "")
    columns = _columns(request, target)
    labels = {"label" if classifies else "pair": target} if target else {}
    texts = [name for name, numbers in columns.items() if not numbers and name not in (target, "split")]
    if not texts:
        raise ConfigurationError(
            f"{request.data} does not have a text column.",
            hint=f"Add a column that contains text. Existing columns: {', '.join(columns)}.",
        )
    metric = "accuracy" if classifies else "retrieval" if target else "cosine"
    return {
        "domain": "text-encoder",
        "data": _table(request, columns) | {"text": "text" if "text" in texts else texts[0], **labels},
        "model": {"kind": "directory", "path": request.path(request.model)}
        | ({} if classifies else {"task": "embedding", **read_pooling(folder)}),
        "checkpoint": {"kind": "directory"},
        "evaluate": {"metric": request.metric or metric},
    }


def completed(name: str, content: JsonObject) -> JsonObject:
    """Complete a workload: add the name, the supported recipes, the benchmark and the gate to `content`."""
    recipes = []
    for keys in _RECIPES:
        needs = METHODS[str(keys["method"])].needs
        if not any(map(DOMAINS[content["domain"]].missing, needs)):
            recipes.append(keys | {"runtimes": _runtimes(Recipe.model_validate(keys))})
    return {
        "schema_version": 1,
        "name": name,
        "description": f"{name}, written by nightquant init",
        **content,
        "recipe": recipes,
        "benchmark": {"baseline": FASTEST_FLOAT},
        "gate": {"objective": "fastest", "quality_drop": "relative", "max_quality_drop": _SHARE},
    }


def with_strict_gate(document: JsonObject, preview: Preview) -> tuple[JsonObject, dict[str, str]]:
    """Set the gate's limit on the quality drop."""
    gate, quality = document["gate"], f"a candidate may lose at most 1% of the baseline's {preview.metric}"
    if preview.is_percentage:
        gate = gate | {"quality_drop": "absolute", "max_quality_drop": _POINTS}
        quality = f"{preview.metric} is a percentage, and a candidate may lose at most half a point"
    elif (reference := preview.reference) is not None and reference.is_nearly_perfect:
        # A fraction of nearly nothing would reject every candidate.
        gate = gate | {"quality_drop": "absolute", "max_quality_drop": float(f"{_SHARE * reference.unit:.2g}")}
        quality = (
            f"the float model's {preview.metric} of {reference.evaluation.quality:.2g} is nearly 0, so a candidate may "
            f"lose 1% of {reference.unit:.3g}, the {preview.metric} of a constant answer"
        )
    objective = "the fastest candidate that loses little enough quality is promoted; a float one if int8 does not pay"
    reasons = {"gate.objective": objective, "gate.max_quality_drop": quality}
    return document | {"gate": gate}, reasons


def without_obstacles(document: JsonObject, preview: Preview) -> JsonObject:
    """Remove candidates that have an `obstacle`."""
    good = [candidate.candidate for candidate in preview.candidates if not candidate.obstacle]
    recipes = []
    for recipe in document["recipe"]:
        runtimes = [runtime for runtime in recipe["runtimes"] if CandidateName(recipe["name"], runtime) in good]
        recipes += [recipe | {"runtimes": runtimes}] if runtimes else []
    if not recipes or recipes[0]["name"] != "float":
        raise ConfigurationError(
            "No runtime can run the float model. Correct these problems:\n"
            + "\n".join(f"  {problem}" for problem in preview.problems)
        )
    return document | {"recipe": recipes}


def _runtimes(recipe: Recipe) -> list[str]:
    # Choose only deployable runtimes. Omit runtimes that compile models, because compiling takes minutes.
    quick = [name for name in RUNTIMES if RUNTIMES[name].hands_over and not runtime_named(name).compiles]
    fitting = [name for name in quick if not RUNTIMES[name].obstacle(recipe)]
    return [name for name in fitting if all(map(installed_version, RUNTIMES[name].distributions))]
