"""A drafted workload file as text: TOML in which every key says what it means."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from pydantic import BaseModel

from flows.draft import SECTIONS
from storage.digest import JsonObject
from tasks.results import CandidatePreview, Preview
from tasks.workload import Workload


def render(
    document: JsonObject,
    workload: Workload,
    found: Preview,
    to_do: str = "",
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Write the file's text: every key with its meaning, those that were not set as comments with their defaults.

    `to_do` is a line about what the user must still do. `reasons` say why a key was chosen, by ``section.key``.
    """
    lines = [
        "# Written by `nightquant init`. To try it out after a change: nightquant workloads --workload FILE --check",
        "# A line `# key = value` shows a default. docs/workload-file.md has every key.",
        *([f"# To do: {to_do}"] if to_do else []),
        *(f"{key} = {toml(document[key])}" for key in ("schema_version", "name", "description", "domain")),
    ]
    for name in SECTIONS:
        lines += _section(name, getattr(workload, name), document[name], reasons=reasons)
        if name == "model":
            lines += [
                f"# {found.parameters:,} parameters. One call takes {found.inputs}",
                f"# and gives {found.outputs}.",
            ]
    for keys, recipe in zip(document["recipe"], workload.recipe, strict=True):
        tried = [each for each in found.candidates if each.candidate.partition("/")[0] == recipe.name]
        lines += _section("recipe", recipe, keys, repeated=True)
        lines += [f"# {line}" for each in tried for line in _remarks(each)]
    kept = {recipe.name for recipe in workload.recipe}
    left = [each for each in found.candidates if each.candidate.partition("/")[0] not in kept]
    lines += ["", *(f"# {line}" for each in left for line in _remarks(each))] if left else []
    lines += _section("benchmark", workload.benchmark, document["benchmark"])
    lines += _section("gate", workload.gate, document["gate"])
    return "\n".join(lines) + "\n"


def _section(
    name: str,
    section: BaseModel,
    given: Mapping[str, object],
    *,
    repeated: bool = False,
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    yield ""
    yield f"[[{name}]]" if repeated else f"[{name}]"
    fields = type(section).model_fields
    for key in sorted(fields, key=lambda each: each not in given):
        if key in ("kind", "method", "name") and key in given:
            yield f"{key} = {toml(given[key])}"
            continue
        if fields[key].description:
            yield from textwrap.wrap(str(fields[key].description), 100, initial_indent="# ", subsequent_indent="# ")
        if reason := reasons.get(f"{name}.{key}"):
            yield f"# Chosen: {reason}."
        if key in given:
            yield f"{key} = {toml(given[key])}"
        else:
            default = None if fields[key].is_required() else fields[key].get_default(call_default_factory=True)
            is_value = default is not None and not isinstance(default, BaseModel)
            yield f"# {key} = {toml(default) if is_value else '…'}"


def _remarks(tried: CandidatePreview) -> Iterator[str]:
    if tried.obstacle:
        yield f"Left out, {tried.candidate}: {tried.obstacle.partition(chr(10))[0]}"
    left = [f"{module.module or 'the model'} ({module.type})" for module in tried.coverage if not module.quantized]
    if left and len(left) < len(tried.coverage):
        yield f"With {tried.candidate.partition('/')[2]} stays float: {', '.join(left[:5])}{', …' if left[5:] else ''}"


def toml(value: object) -> str:
    """A value as TOML: JSON but for tables, which stand in one line."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{_key(str(key))} = {toml(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return _text(value)


def _text(value: object) -> str:
    # Of control characters, JSON leaves this one as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)
