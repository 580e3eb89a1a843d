"""The JSON Schema of workload files, for editors and for their reference: every domain, every method."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import AliasChoices, BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from storage.documents import JsonObject
from tasks.extensions import DOMAINS, METHODS
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

_DEFINITIONS = "#/$defs/"


def workload_schema() -> JsonObject:
    """A workload file as JSON Schema: ``domain`` decides on the sections, and ``kind`` or ``method`` on their keys."""
    workloads = {name: DOMAINS[name].workload for name in DOMAINS}
    recipes = {name: METHODS[name].recipe for name in METHODS}
    models: list[type[BaseModel]] = [*workloads.values(), *recipes.values()]
    references, whole = models_json_schema([(model, "validation") for model in models])
    definitions: JsonObject = whole["$defs"]
    found = {model: references[model, "validation"]["$ref"].removeprefix(_DEFINITIONS) for model in models}
    any_recipe = {
        "oneOf": [{"$ref": _DEFINITIONS + found[recipe]} for recipe in recipes.values()],
        "discriminator": {
            "propertyName": "method",
            "mapping": {name: _DEFINITIONS + found[recipe] for name, recipe in recipes.items()},
        },
    }
    for model in models:
        _allow_older_names(model, definitions[found[model]])
    for name, workload in workloads.items():
        properties = definitions[found[workload]]["properties"]
        for key in ("domain", "purpose"):
            properties[key] = {**properties[key], "const": name}
        properties["recipe"]["items"] = any_recipe
        _describe(properties, Workload)
    for recipe in recipes.values():
        _describe(definitions[found[recipe]]["properties"], Recipe)
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": "A workload of nightquant",
        "oneOf": [{"$ref": _DEFINITIONS + found[workload]} for workload in workloads.values()],
        "$defs": _reachable(definitions, [found[workload] for workload in workloads.values()]),
    }


def _describe(properties: JsonObject, base: type[BaseModel]) -> None:
    """Say what keys mean that a class narrows: pydantic takes a description from the narrowed field alone."""
    for name, field in base.model_fields.items():
        properties[name].setdefault("description", field.description)


def _allow_older_names(model: type[BaseModel], schema: JsonObject) -> None:
    """Add a key's other names, of which pydantic's schema knows the first only."""
    for field in model.model_fields.values():
        if not isinstance(field.validation_alias, AliasChoices):
            continue
        names = [str(choice) for choice in field.validation_alias.choices]
        for older in names[1:]:
            schema["properties"][older] = {**schema["properties"][names[0]], "deprecated": True}
        if names[0] in schema["required"]:
            schema["required"].remove(names[0])
            schema["oneOf"] = [{"required": [name]} for name in names]


def _reachable(definitions: Mapping[str, JsonObject], start: list[str]) -> JsonObject:
    """The definitions that something refers to, in the order in which they are met."""
    found: JsonObject = {}
    while start:
        name = start.pop(0)
        if name not in found:
            found[name] = definitions[name]
            start += _references(definitions[name])
    return found


def _references(node: object) -> list[str]:
    if isinstance(node, list):
        return [name for item in node for name in _references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"].removeprefix(_DEFINITIONS)] if isinstance(node.get("$ref"), str) else []
    return own + [name for key, item in node.items() if key != "discriminator" for name in _references(item)]
