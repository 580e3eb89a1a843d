"""Workload files written for the user: what is known of a model and its data becomes sections, with comments."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from pydantic import JsonValue

from storage.digest import JsonObject
from storage.errors import ConfigurationError, did_you_mean
from tasks.domains.image_classification import TorchvisionModel
from tasks.domains.text_encoder import is_classifier, labels_of, read_config, read_pooling
from tasks.extensions import DOMAINS, METHODS, RUNTIMES
from tasks.machine import installed_version
from tasks.refs import covered_share
from tasks.results import CandidatePreview, Preview
from tasks.workload.base import REFERENCE
from tasks.workload.recipe import Recipe

_TABLES = (".csv", ".jsonl", ".parquet")
SECTIONS = ("data", "model", "checkpoint", "evaluate")
_SAVED = 0.75  # of a float32 parameter's bytes, as int8
_POINTS = 0.5  # that a candidate may lose of a percentage
_LINES = 5  # of a table to fill in, for each class: some for every split
_RECIPES: tuple[JsonObject, ...] = (
    {"name": "float", "method": "none"},
    {"name": "dynamic-int8", "method": "dynamic", "modules": ["LSTM", "GRU", "Linear"]},
    {"name": "static-int8", "method": "static"},
)


@dataclass(frozen=True)
class Asked:
    """What the user says of a model. ``folder`` is where the workload file goes; "" stands for an option not given."""

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
        """Return a path as the workload file names it; an address stays as it is."""
        return given if "://" in given else os.path.relpath(Path(given).expanduser().absolute(), self.folder.absolute())


def with_texts(asked: Asked) -> Asked:
    """The same with ``texts.csv``, which is written in the file's folder: lines in the place of the user's own.

    Raises
    ------
    ConfigurationError
        The model is no directory of transformers', or there is such a file.
    """
    if not Path(asked.model).is_dir():
        raise ConfigurationError("--data is missing.", hint="Name your callable, a table, or a folder of pictures.")
    config = read_config(Path(asked.model))
    rows: list[tuple[str, ...]] = [("text",), *((f"a text of yours, the {number}.",) for number in range(1, 11))]
    if is_classifier(config):
        some = [(f"a text of the class {label}", label) for label in labels_of(config)]
        rows = [("text", "label"), *some * _LINES]
    path = asked.folder / "texts.csv"
    try:
        with path.open("x", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)
    except FileExistsError as error:
        raise ConfigurationError(f"{path} is there already.", hint=f"To take it: --data {path}.") from error
    return replace(asked, data=str(path))


def sections(asked: Asked) -> JsonObject:
    """``domain`` and the sections that say what there is, of the first draft that knows such a model.

    Raises
    ------
    ConfigurationError
        No draft does, or something is missing that it needs.
    """
    known = get_args(TorchvisionModel)
    is_callable = re.match(REFERENCE, asked.model) is not None
    if Path(asked.data).is_dir() and (is_callable or asked.model in known):
        return _pictures(asked)
    if Path(asked.model).is_dir():
        return _encoder(asked)
    if is_callable:
        return _module(asked)
    raise ConfigurationError(
        f'--model "{asked.model}" is no model that init knows{did_you_mean(asked.model, known)}.',
        hint="Expected module:callable, a directory of transformers', or with pictures one of torchvision's: "
        f"{', '.join(known)}.",
    )


def _pictures(asked: Asked) -> JsonObject:
    if re.match(REFERENCE, asked.model):
        model: JsonObject = {"kind": "factory", "factory": asked.model, "arguments": asked.arguments}
    else:
        model = {"kind": "torchvision", "name": asked.model, **asked.arguments}
    weights = _weights(asked) or {"kind": "train"}
    if re.fullmatch(r"\w+_Weights\.\w+", asked.checkpoint) and not Path(asked.checkpoint).exists():
        weights = {"kind": "torchvision-weights", "weights": asked.checkpoint}
    return {
        "domain": "image-classification",
        "data": {"kind": "image-folder", "uri": asked.path(asked.data)},
        "model": model,
        "checkpoint": weights,
        "evaluate": {},
    }


def _module(asked: Asked) -> JsonObject:
    if asked.data.endswith(_TABLES):
        if not asked.target:
            raise ConfigurationError("--target is missing.", hint="Name the column of the table that is predicted.")
        columns = _columns(asked)
        target = _column(asked, asked.target, columns)
        features = [name for name, numbers in columns.items() if numbers and name != target]
        data = _table(asked, columns) | {"features": features, "target": target}
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


def _columns(asked: Asked) -> dict[str, bool]:
    if not asked.data.endswith(_TABLES):
        raise ConfigurationError(f'--data "{asked.data}" is no table.', hint=f"Expected a file {', '.join(_TABLES)}.")
    from tasks.data.tables import columns_of

    return columns_of(Path(asked.data))


def _column(asked: Asked, name: str, columns: Collection[str]) -> str:
    if name not in columns:
        raise ConfigurationError(
            f'{asked.data} has no column "{name}"{did_you_mean(name, columns)}.',
            hint=f"It has: {', '.join(columns)}. Name the one to predict: --target COLUMN.",
        )
    return name


def _table(asked: Asked, columns: Collection[str]) -> JsonObject:
    found = {"kind": Path(asked.data).suffix[1:], "uri": asked.path(asked.data)}
    return found | ({"split": "split"} if "split" in columns else {})


def _weights(asked: Asked) -> JsonObject:
    if asked.checkpoint:
        return {"kind": "uri", "uri": asked.path(asked.checkpoint)}
    given = {"arguments": asked.train_arguments} if asked.train_arguments else {}
    return {"kind": "train", "train": asked.train, **given} if asked.train else {}


def _encoder(asked: Asked) -> JsonObject:
    folder, columns = Path(asked.model), _columns(asked)
    classifies = is_classifier(read_config(folder))
    target = asked.target or ("label" if classifies else "")
    named = {"label" if classifies else "pair": _column(asked, target, columns)} if target else {}
    texts = [name for name, numbers in columns.items() if not numbers and name not in (target, "split")]
    if not texts:
        raise ConfigurationError(f"{asked.data} has no column of texts.", hint=f"It has: {', '.join(columns)}.")
    metric = "accuracy" if classifies else "retrieval" if target else "cosine"
    return {
        "domain": "text-encoder",
        "data": _table(asked, columns) | {"text": "text" if "text" in texts else texts[0], **named},
        "model": {"kind": "directory", "path": asked.path(asked.model)}
        | ({} if classifies else {"task": "embedding", **read_pooling(folder)}),
        "checkpoint": {"kind": "directory"},
        "evaluate": {"metric": asked.metric or metric},
    }


def whole(name: str, known: JsonObject) -> JsonObject:
    """Complete the document with every recipe that fits the domain's models, for the runtimes that are installed."""
    recipes = []
    for keys in _RECIPES:
        needs = METHODS[str(keys["method"])].needs
        if not any(map(DOMAINS.workload(known["domain"]).lacks, needs)):
            recipes.append(keys | {"runtimes": _runtimes(Recipe.model_validate(keys))})
    return {
        "schema_version": 1,
        "name": name,
        "description": f"{name}, written by nightquant init",
        **known,
        "recipe": recipes,
        "benchmark": {"baseline": f"float/{recipes[0]['runtimes'][0]}"},
        "gate": {"objective": "fastest", "quality_drop": "relative", "max_quality_drop": 0.01, "min_size_ratio": 1.2},
    }


def with_strict_gate(document: JsonObject, found: Preview) -> tuple[JsonObject, dict[str, str]]:
    """Bound the loss of a percentage in points, and the size only if a quantized candidate can be small enough.

    Return the document, and why the gate is so by ``section.key``.
    """
    gate, quality = document["gate"], f"1% of the baseline's {found.metric} is the most that a candidate may lose"
    if found.is_percentage:
        gate = gate | {"quality_drop": "absolute", "max_quality_drop": _POINTS}
        quality = f"{found.metric} is a percentage, of which half a point is the most that a candidate may lose"
    size = "only a quantized candidate is so much smaller than the baseline"
    if (largest := _too_few_parameters(document, found)) is not None:
        gate = {key: value for key, value in gate.items() if key != "min_size_ratio"}
        size = f"int8 reaches at most {largest:.1%} of the parameters, so no candidate is much smaller"
    objective = "of the candidates that are small enough and lose little enough, the fastest is promoted"
    reasons = {"gate.objective": objective, "gate.max_quality_drop": quality, "gate.min_size_ratio": size}
    return document | {"gate": gate}, reasons


def with_size_obstacles(document: JsonObject, found: Preview) -> Preview:
    """Name the gate as the obstacle of candidates whose int8 share of the parameters cannot make them small enough.

    A night would build and evaluate each of them only to refuse it. If it would refuse every quantized candidate, all
    stay, because `with_strict_gate` then leaves out the bound.
    """
    wanted = float(document["gate"]["min_size_ratio"])

    def judged(tried: CandidatePreview) -> CandidatePreview:
        share = covered_share(tried.coverage)
        if tried not in quantized or not tried.coverage or _size_ratio(share) >= wanted:
            return tried
        why = f"only {share:.1%} of the parameters become int8, too few for the gate's min_size_ratio = {wanted:g}"
        return CandidatePreview(candidate=tried.candidate, obstacle=why)

    quantized = _quantized(document, found)
    candidates = tuple(map(judged, found.candidates))
    if all(judged(each).obstacle for each in quantized):
        return found
    return found.model_copy(update={"candidates": candidates})


def _too_few_parameters(document: JsonObject, found: Preview) -> float | None:
    """Return the largest share of the parameters that becomes int8 if it is known to be too small for the gate."""
    quantized = _quantized(document, found)
    if not quantized or not all(each.coverage for each in quantized):
        return None
    largest = max(covered_share(each.coverage) for each in quantized)
    return largest if _size_ratio(largest) < document["gate"]["min_size_ratio"] else None


def _quantized(document: JsonObject, found: Preview) -> list[CandidatePreview]:
    """Return the candidates that quantize and have no obstacle."""
    names = {recipe["name"] for recipe in document["recipe"] if METHODS[recipe["method"]].quantizes}
    return [each for each in found.candidates if not each.obstacle and each.candidate.partition("/")[0] in names]


def _size_ratio(share: float) -> float:
    return 1 / (1 - _SAVED * share)


def without_obstacles(document: JsonObject, found: Preview) -> JsonObject:
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
    benchmark = document["benchmark"] | {"baseline": f"float/{kept[0]['runtimes'][0]}"}
    return document | {"recipe": kept, "benchmark": benchmark}


def _runtimes(recipe: Recipe) -> list[str]:
    # What can be deployed, and is made in seconds.
    quick = [name for name in RUNTIMES if RUNTIMES[name].hands_over and not RUNTIMES[name].compiles]
    wanted = [name for name in quick if not RUNTIMES[name].obstacle(recipe)]
    return [name for name in wanted if all(map(installed_version, RUNTIMES[name].distributions))]
