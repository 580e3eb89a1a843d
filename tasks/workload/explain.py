"""What is wrong with a workload file, in its own terms: key, what was expected, and what may have been meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from pydantic import AliasChoices, BaseModel, ValidationError

from storage.documents import JsonObject
from storage.messages import did_you_mean
from tasks.extensions import DOMAINS, METHODS
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

_QUOTED = re.compile(r"'([^']*)'")


def explain(path: Path, document: JsonObject, error: ValidationError) -> str:
    """One line for each problem."""
    lines = [f"{path}: not a valid workload:"]
    for problem in error.errors(include_url=False):
        key = ".".join(map(str, problem["loc"])) or "the file as a whole"
        given = problem.get("input")
        shown = f" (got {given!r})" if isinstance(given, str | int | float | bool) else ""
        meant = _meant(document, problem["type"], problem["loc"], given, problem.get("ctx", {}))
        lines.append(f"  {key}: {problem['msg']}{shown}{meant}")
    return "\n".join(lines)


def _meant(document: JsonObject, kind: str, place: Sequence[str | int], given: object, context: JsonObject) -> str:
    """Propose what a key, a kind or a word is like, if there is such a one, for a problem as pydantic describes it."""
    match kind:
        case "extra_forbidden":
            return did_you_mean(str(place[-1]), _keys_at(document, place[:-1]))
        case "literal_error":
            return did_you_mean(str(given), _QUOTED.findall(context["expected"]))
        case "union_tag_invalid":
            return did_you_mean(context["tag"], _QUOTED.findall(context["expected_tags"]))
    return ""


def _keys_at(document: JsonObject, place: Sequence[str | int]) -> list[str]:
    """The keys that a table of the file may have; of pydantic's place some parts are kinds."""
    domain = document.get("domain", document.get("purpose"))
    models: list[type[BaseModel]] = [DOMAINS[str(domain)].workload if domain else Workload]
    for part in place:
        if isinstance(part, int):
            method = document["recipe"][part].get("method")
            models = [METHODS[method].recipe if method else Recipe]
        elif inner := [
            model for outer in models if part in outer.model_fields for model in _models(outer.model_fields[part])
        ]:
            models = inner
        else:
            models = [model for model in models if part in _kinds(model)]
    return [name for model in models for name in _names(model)]


def _models(field: object) -> list[type[BaseModel]]:
    """The sections that a field's annotation names."""
    annotation = getattr(field, "annotation", field)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _kinds(model: type[BaseModel]) -> Iterable[str]:
    kind = model.model_fields.get("kind")
    return get_args(kind.annotation) if kind else ()


def _names(model: type[BaseModel]) -> Iterable[str]:
    for name, field in model.model_fields.items():
        choices = field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else [name]
        yield from map(str, choices)
