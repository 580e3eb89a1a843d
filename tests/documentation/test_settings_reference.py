"""docs/settings.md: the settings, written from flows/settings.py, and the other variables that the code reads."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import annotated_types
import click
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from flows.cli import nightquant
from flows.settings import Settings
from tests.documentation.generated import HOST_DEFAULTS, alternatives
from tests.documentation.pages import ROOT, Document

PAGE = ROOT / "docs" / "settings.md"
_OWN = re.compile(r"(?<!-D)\b_?NIGHTQUANT_[A-Z][A-Z_]*[A-Z]\b")
_READ = re.compile(r"""(?:environ\.(?:get|setdefault|pop)\(|environ\[|getenv\()["']([A-Z][A-Z_]+)["']""")


def settings_table() -> Iterator[str]:
    """One row for each setting."""
    yield "| key | type | default | environment variable | option | meaning |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, field in Settings.model_fields.items():
        option = f"`--{name.replace('_', '-')}`" if name in options() else ""
        meaning = str(field.description).replace("current.json", "`current.json`")
        variable = f"`NIGHTQUANT_{name.upper()}`"
        yield f"| `{name}` | {_type(field)} | {_default(name, field)} | {variable} | {option} | {meaning} |"


@cache
def options() -> frozenset[str]:
    """Names of all options of the commands."""
    context = click.Context(nightquant)
    commands = [nightquant.get_command(context, name) for name in nightquant.list_commands(context)]
    return frozenset(str(option.name) for command in commands if command for option in command.params)


def _type(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    if choices := get_args(annotation):
        return alternatives(f'`"{choice}"`' for choice in choices)
    if annotation in (str, SecretStr):
        return "text"
    signs = {annotated_types.Gt: "> {0.gt:g}", annotated_types.Ge: "≥ {0.ge:g}"}
    bounds = [signs[type(bound)].format(bound) for bound in field.metadata]
    return " ".join([{int: "integer", float: "number"}[annotation], *bounds])


def _default(name: str, field: FieldInfo) -> str:
    if name in HOST_DEFAULTS:
        return HOST_DEFAULTS[name]
    value = field.get_default()
    if isinstance(value, float):
        return f"`{value:g}`"
    text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    return f'`"{text}"`' if text else ""


def sources(*patterns: str) -> str:
    """The text of the tracked files that match."""
    listed = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return "\n".join(Path(ROOT / name).read_text(encoding="utf-8") for name in listed.stdout.split())


def test_no_variable_that_the_code_reads_is_missing() -> None:
    code = sources("flows/*.py", "tasks/*.py", "storage/*.py", "prefect.yaml", "Dockerfile", "docs/examples/*.ipynb")
    named = {*_OWN.findall(code), *_READ.findall(code), *_READ.findall(sources("tasks/*.cpp"))}
    assert {"NIGHTQUANT_ISA", "NIGHTQUANT_ROOT", "NIGHTQUANT_STORE", "CXX", "PREFECT_HOME"} <= named
    assert named - set(Document.read(PAGE).prose_code) == set()
