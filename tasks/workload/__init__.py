"""Workload files and the gate's rules: read and validate the files, and return their JSON Schema, without torch."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from storage.digest import JsonObject
from storage.errors import ConfigurationError, did_you_mean
from tasks.workload.recipe import METHODS, Recipe
from tasks.workload.workload import DOMAINS, Workload

__all__ = ["Workload", "find_workloads", "read_workload", "validated"]


def read_workload(path: Path) -> Workload:
    """Read and validate one workload file; raise `ConfigurationError` if it cannot be read or is not valid."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}.") from error
    except (ValueError, RecursionError) as error:  # includes `tomllib.TOMLDecodeError`; deep nesting recurses
        raise ConfigurationError(f"{path} is not valid TOML: {error}.", hint="Correct the file.") from error
    return validated(path, document)


def validated(path: Path, document: JsonObject) -> Workload:
    """Validate the content of a workload file; raise `ConfigurationError` if it is not valid.

    The file at `path` does not have to exist. Relative paths in ``data.uri``, ``data.root`` and ``checkpoint.uri`` are
    resolved against the file's folder.
    """
    document, folder = deepcopy(dict(document)), path.resolve().parent
    for section, key in (("data", "uri"), ("data", "root"), ("checkpoint", "uri")):
        table = document.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str) and "://" not in table[key]:
            table[key] = str(folder / Path(table[key]).expanduser())
    try:
        return Workload.model_validate(document, context={"folder": str(folder)})
    except ValidationError as error:
        raise ConfigurationError(_explained(path, error)) from error


def find_workloads(names: Iterable[str], built_in: Path) -> list[Workload]:
    """Return the workloads that `names` lists by name or TOML path, or all built-in workloads if `names` is empty."""
    paths = {path.stem: path for path in sorted(built_in.glob("*.toml"))}
    workloads = []
    for name in list(names) or paths:
        path = Path(name) if name.endswith(".toml") else paths.get(name)
        if path is None:
            raise ConfigurationError(
                f'Unknown workload "{name}"{did_you_mean(name, paths)}.',
                hint=f"Name a TOML file or one of the built-in workloads: {', '.join(paths)}.",
            )
        workloads.append(read_workload(path))
    for name, count in Counter(workload.name for workload in workloads).items():
        if count > 1:
            raise ConfigurationError(f'Two workloads are named "{name}".', hint="Give each workload a unique name.")
    return workloads


_QUOTED = re.compile(r"'([^']*)'")


def _explained(path: Path, error: ValidationError) -> str:
    """Return one line for each validation problem."""
    lines = [f"{path}: not a valid workload:"]
    for problem in error.errors(include_url=False):
        key = ".".join(map(str, problem["loc"])) or "the file as a whole"
        value = problem.get("input")
        received = f" (got {value!r})" if isinstance(value, str | int | float | bool) else ""
        proposal = _proposal(problem["type"], problem["loc"], value, problem.get("ctx", {}))
        lines.append(f"  {key}: {problem['msg']}{received}{proposal}")
    return "\n".join(lines)


def _proposal(kind: str, place: Sequence[str | int], value: object, context: JsonObject) -> str:
    """Suggest a valid key, kind or word that is similar to the invalid input; return ``""`` if none is similar."""
    if kind == "extra_forbidden":
        return did_you_mean(str(place[-1]), _keys_beside(place) if place[1:] else Workload.model_fields)
    if kind == "literal_error":
        return did_you_mean(str(value), _QUOTED.findall(context["expected"]))
    return did_you_mean(context["tag"], _QUOTED.findall(context["expected_tags"])) if "tag" in context else ""


_DEFINITIONS = "#/$defs/"


def _keys_beside(place: Sequence[str | int]) -> set[str]:
    """Return the keys of the sections in which the unknown key `place` can be, or of all sections if none is found."""
    sections: JsonObject = workload_schema()["$defs"]
    owners = [section["properties"] for section in sections.values() if "properties" in section]
    uses = " ".join(json.dumps(properties[place[-2]]) for properties in owners if place[-2] in properties)
    own = [section["properties"] for name, section in sections.items() if f'"{_DEFINITIONS}{name}"' in uses]
    return {key for properties in own or owners for key in properties} - {str(place[-1])}


def workload_schema() -> JsonObject:
    """Return the JSON Schema of workload files, whose keys depend on ``domain``, ``kind`` and ``method``."""
    workloads = {name: DOMAINS[name] for name in DOMAINS}
    recipes = {name: METHODS[name] for name in METHODS}
    models: list[type[BaseModel]] = [*workloads.values(), *recipes.values()]
    references, whole = models_json_schema([(model, "validation") for model in models])
    definitions: JsonObject = whole["$defs"]
    names = {model: references[model, "validation"]["$ref"].removeprefix(_DEFINITIONS) for model in models}
    any_recipe = {
        "oneOf": [{"$ref": _DEFINITIONS + names[recipe]} for recipe in recipes.values()],
        "discriminator": {
            "propertyName": "method",
            "mapping": {name: _DEFINITIONS + names[recipe] for name, recipe in recipes.items()},
        },
    }
    for name, workload in workloads.items():
        properties = definitions[names[workload]]["properties"]
        properties["domain"] = {**properties["domain"], "const": name}
        properties["recipe"]["items"] = any_recipe
        _describe(properties, Workload)
    for recipe in recipes.values():
        _describe(definitions[names[recipe]]["properties"], Recipe)
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": "A workload of nightquant",
        "oneOf": [{"$ref": _DEFINITIONS + names[workload]} for workload in workloads.values()],
        "$defs": definitions,
    }


def _describe(properties: JsonObject, base: type[BaseModel]) -> None:
    """Copy missing key descriptions from the base class, because pydantic does not inherit descriptions."""
    for name, field in base.model_fields.items():
        properties[name].setdefault("description", field.description)
