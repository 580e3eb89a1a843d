"""docs/runtime-reference.md, whose tables are written from what each runtime declares."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tasks.runtimes.base import Runtime, runtime_named
from tasks.workload.recipe import METHODS, RUNTIMES, Recipe
from tests.documentation.pages import ROOT, Document
from tests.tasks.quantize.carrying import CARRIED

PAGE = ROOT / "docs" / "runtime-reference.md"


def recipe(method: str, **keys: Any) -> Recipe:
    """A recipe with the defaults of its method, but for some keys."""
    able = "executorch" if keys.get("linear_bits") == 4 else "eager"  # validation refuses the others
    return METHODS[method].model_validate({"name": "r", "method": method, "runtimes": [able], **keys})


def choices(method: str) -> Iterator[tuple[str, Any]]:
    """Every key of a method that has a fixed set of values, with each value."""
    for key, field in METHODS[method].model_json_schema()["properties"].items():
        if key in ("method", "runtimes"):
            continue
        for part in field.get("anyOf", [field]):
            values = part.get("enum", [part["const"]] if "const" in part else ())
            yield from ((key, value) for value in ((True, False) if part.get("type") == "boolean" else values))


def refusals(runtime: Runtime) -> dict[tuple[str, str], list[str]]:
    """The methods to which each pair of a refused value and its reason applies; "" stands for the method itself."""
    found: dict[tuple[str, str], list[str]] = {}
    for method in METHODS:
        if obstacle := runtime.obstacle(recipe(method)):
            found.setdefault(("", obstacle), []).append(method)
            continue
        for key, value in choices(method):
            if obstacle := runtime.obstacle(recipe(method, **{key: value})):
                found.setdefault((f"{key} = {json.dumps(value)}", obstacle), []).append(method)
    return found


def tables() -> Iterator[str]:
    """The tables of methods, of properties and of refused recipes."""
    runtimes = {name: runtime_named(name) for name in RUNTIMES}
    yield "## Methods\n"
    exceptions = "[Refused recipes](#refused-recipes) lists the exceptions."
    yield f"The table applies to recipes with default values. {exceptions}\n"
    yield f"| method | {' | '.join(f'`{name}`' for name in runtimes)} |"
    yield f"| --- |{' --- |' * len(runtimes)}"
    for method in METHODS:
        cells = ["no" if each.obstacle(recipe(method)) else "yes" for each in runtimes.values()]
        yield f"| `{method}` | {' | '.join(cells)} |"
    yield "\n## Requirements and properties\n"
    yield "| runtime | extra | packages | published in bundles | uses torch's `engine` |"
    yield "| --- | --- | --- | --- | --- |"
    for name, runtime in runtimes.items():
        flags = (runtime.hands_over, runtime.runs_engine)
        packages = ", ".join(f"`{package}`" for package in runtime.distributions)
        extra = f"`{runtime.extra}`" if runtime.extra else ""
        yield f"| `{name}` | {extra} | {packages} | {' | '.join('yes' if flag else 'no' for flag in flags)} |"
    yield "\n## Refused recipes\n"
    yield "| runtime | method | refused value | reason |\n| --- | --- | --- | --- |"
    for name, runtime in runtimes.items():
        for (value, reason), methods in refusals(runtime).items():
            shown = f"`{value}`" if value else "every recipe"
            yield f"| `{name}` | {', '.join(f'`{method}`' for method in methods)} | {shown} | {_sentence(reason)} |"
    yield "\n## What modules carry\n"
    yield "In `eager` and `torchscript`, the methods treat a module that carries more than its weights as follows:\n"
    yield "| a module carries | `dynamic` | `dynamic-per-row` | `static`, `qat` |\n| --- | --- | --- | --- |"
    for case in CARRIED:
        yield f"| {case.what} | {' | '.join((case.dynamic, case.per_row, case.static))} |"


def _sentence(reason: str) -> str:
    for word, name in (("its ", "the runtime's "), ("it ", "the runtime ")):
        reason = f"{name}{reason.removeprefix(word)}" if reason.startswith(word) else reason
    reason = re.sub(r'(?:the )?(method|engine) "([^"]+)"', r"the `\2` \1", reason)
    reason = re.sub(r'\w+ = "[^"]+"|\b(?:torch\.export|torchscript|onnxruntime)\b', r"`\g<0>`", reason)
    return f"{reason[0].upper()}{reason[1:]}."


def test_every_runtime_has_a_section() -> None:
    assert set(RUNTIMES) <= Document.read(PAGE).anchors
