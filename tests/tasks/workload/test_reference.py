"""The JSON Schema of workload files, and docs/workload-file.md, which is written from it."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import jsonschema
import pytest

from flows.request import BUILT_IN
from storage.digest import JsonObject
from tasks.workload import read_workload, workload_schema
from tests.documentation.pages import ROOT

PAGE = ROOT / "docs" / "workload-file.md"
MARKER = "<!-- Generated from here on: python -m tests.tasks.workload.test_reference -->\n"
FILES = [*BUILT_IN.glob("*.toml"), *(ROOT / "docs" / "examples").glob("*.toml")]
# In the schema of each domain the same, and described once.
COMMON = ("recipe", "benchmark", "gate")
SECTIONS = ("data", "model", "checkpoint", "evaluate")
OWN = ("fine_tune",)  # sections that some domains alone have


class Reference:
    """The page's tables, from the schema."""

    def __init__(self, schema: JsonObject) -> None:
        self.definitions = schema["$defs"]
        self.domains = {self._domain(each["$ref"]): self._at(each["$ref"]) for each in schema["oneOf"]}
        users = Counter(
            reference
            for domain in self.domains.values()
            for section in SECTIONS
            for reference in self._kinds(domain, section)
        )
        self.shared = [reference for reference, count in users.items() if count > 1 and self._tag(self._at(reference))]

    def page(self) -> Iterator[str]:
        first = next(iter(self.domains.values()))
        yield "## The file\n"
        domain = {**first["properties"]["domain"], "const": None, "enum": list(self.domains)}
        yield from self._table({**first, "properties": {**first["properties"], "domain": domain}})
        for section in ("benchmark", "gate"):
            (reference,) = self._references(first["properties"][section])
            yield f"## `[{section}]`\n"
            yield from self._section(self._at(reference))
        yield "## `[[recipe]]`\n"
        recipes = [self._at(each["$ref"]) for each in first["properties"]["recipe"]["items"]["oneOf"]]
        common = set.intersection(*(set(recipe["properties"]) for recipe in recipes))
        yield "Keys of every method:\n"
        kept = {name: field for name, field in recipes[0]["properties"].items() if name in common}
        yield from self._table({**recipes[0], "properties": {**kept, "method": {**kept["method"], "const": None}}})
        for recipe in recipes:
            yield f'### `method = "{recipe["properties"]["method"]["const"]}"`\n'
            yield from self._section(recipe, leave_out=common)
        for name, domain in self.domains.items():
            yield f"## Domain `{name}`\n"
            own = [section for section in OWN if section in domain["properties"]]
            (common,) = self._kinds(first, "benchmark")
            for section in [*SECTIONS, *own, "benchmark"]:
                for reference in self._kinds(domain, section):
                    kind = self._at(reference)
                    if section == "benchmark" and kind["properties"] == self._at(common)["properties"]:
                        continue
                    yield f"### {name}: `[{section}]`{f', `kind = {self._tag(kind)}`' if self._tag(kind) else ''}\n"
                    if reference in self.shared:
                        yield f"See [below](#kind-{self._anchor(kind)}).\n"
                    elif section == "benchmark":
                        yield "Besides, or instead:\n"
                        known = self._at(common)["properties"]
                        same = [name for name, field in kind["properties"].items() if field == known.get(name)]
                        yield from self._table(kind, leave_out=same)
                    else:
                        yield from self._section(kind)
        yield "## Kinds that several domains have\n"
        for reference in self.shared:
            yield f"### Kind `{self._tag(self._at(reference)).strip('`')}`\n".replace('"', "")
            yield from self._section(self._at(reference))

    def _section(self, schema: JsonObject, leave_out: Iterable[str] = ()) -> Iterator[str]:
        yield _one_line(schema["description"]) + "\n"
        yield from self._table(schema, leave_out=(*leave_out, "kind"))

    def _table(self, schema: JsonObject, leave_out: Iterable[str] = ()) -> Iterator[str]:
        rows = []
        for name, field in schema["properties"].items():
            if name in leave_out or field.get("deprecated"):
                continue
            needed = [*schema.get("required", ()), *(each["required"][0] for each in schema.get("oneOf", ()))]
            default = "needed" if name in needed else self._value(field.get("default"))
            rows.append(f"| `{name}` | {self._type(field)} | {default} | {self._meaning(field)} |")
            for inner in self._references(field):
                if name not in (*SECTIONS, *COMMON, *OWN) and "properties" in self._at(inner):
                    rows += [
                        f"| `{name}.{key}` | {self._type(part)} | {self._value(part.get('default'))} "
                        f"| {_one_line(part['description'])} |"
                        for key, part in self._at(inner)["properties"].items()
                    ]
        yield "\n".join(["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]) if rows else ""

    def _meaning(self, field: JsonObject) -> str:
        """Of a key; pydantic leaves out what the section's own description says."""
        return _one_line(field.get("description") or self._at(field["$ref"])["description"])

    def _type(self, field: JsonObject) -> str:
        if "$ref" in field:
            return "any" if field["$ref"].endswith("/JsonValue") else "table"
        if field.get("const") is not None:
            return self._value(field["const"])
        if "enum" in field:
            return " or ".join(map(self._value, field["enum"]))
        if "oneOf" in field:
            return "table"
        if "anyOf" in field:
            return " or ".join(self._type(each) for each in field["anyOf"] if each.get("type") != "null")
        match field.get("type"):
            case "array":
                return f"list of {self._type(field['items'])}"
            case "object" if isinstance(field.get("additionalProperties"), dict):
                return f"table of {self._type(field['additionalProperties'])}"
            case "integer" | "number" as kind:
                return "".join([kind, *self._bounds(field)])
            case "string":
                return "`module:callable`" if ":[A-Za-z_]" in field.get("pattern", "") else "text"
            case kind:
                return {"object": "table", "boolean": "`true` or `false`"}.get(str(kind), "any")

    def _bounds(self, field: JsonObject) -> Iterator[str]:
        signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
        yield from (f" {sign} {field[key]:g}" for key, sign in signs.items() if key in field)

    def _value(self, value: object) -> str:
        return "" if value in (None, {}, []) or isinstance(value, dict) else f"`{json.dumps(value)}`"

    def _kinds(self, domain: JsonObject, section: str) -> list[str]:
        return self._references(domain["properties"][section])

    def _references(self, field: JsonObject) -> list[str]:
        found = [each["$ref"] for each in field.get("oneOf") or field.get("anyOf") or [field] if "$ref" in each]
        return [reference for reference in found if "properties" in self._at(reference)]

    def _tag(self, schema: JsonObject) -> str:
        kind = schema.get("properties", {}).get("kind", {})
        return " or ".join(f'"{each}"' for each in kind.get("enum", [kind["const"]] if "const" in kind else []))

    def _anchor(self, schema: JsonObject) -> str:
        return self._tag(schema).replace('"', "").replace(" ", "-")

    def _domain(self, reference: str) -> str:
        return str(self._at(reference)["properties"]["domain"]["const"])

    def _at(self, reference: str) -> JsonObject:
        found: JsonObject = self.definitions[reference.removeprefix("#/$defs/")]
        return found


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def documented(page: str) -> str:
    """The page with what follows its marker written again."""
    written, _, _ = page.partition(MARKER)
    return f"{written}{MARKER}\n" + "\n".join(part for part in Reference(workload_schema()).page() if part)


def test_the_page_is_what_the_schema_says() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert MARKER in written
    assert written == documented(written), "Write it again with: python -m tests.tasks.workload.test_reference"


def test_every_key_says_what_it_means() -> None:
    silent = [
        f"{name}.{key}"
        for name, schema in workload_schema()["$defs"].items()
        for key, field in schema.get("properties", {}).items()
        if key != "kind"
        and not (key == "method" and "const" in field)
        and not (field.get("description") or "$ref" in field)
    ]
    assert silent == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.slow
def test_the_schema_takes_every_workload_file_of_the_project(path: Path) -> None:
    if path.stem != "encoder":  # whose directory is made by its own program
        read_workload(path)
    jsonschema.Draft202012Validator(workload_schema()).validate(tomllib.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('kind = "word-lm"', 'kind = "word-ml"'),
        ("embedding_size", "embeding_size"),
        ('method = "dynamic"', 'method = "dynamics"'),
        ('"torchscript"', '"torchscrpit"'),
        ("schema_version = 1", "schema_version = 2"),
        ('purpose = "language-model"', 'purpose = "sequence"'),
    ],
)
@pytest.mark.slow
def test_the_schema_refuses_what_reading_the_file_refuses(old: str, new: str) -> None:
    text = (BUILT_IN / "word-lm.toml").read_text(encoding="utf-8")
    assert old in text
    validator = jsonschema.Draft202012Validator(workload_schema())
    assert not validator.is_valid(tomllib.loads(text.replace(old, new)))


if __name__ == "__main__":
    PAGE.write_text(documented(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
