"""The JSON Schema of workload files, and docs/workload-file.md, which is written from it."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import jsonschema
import pytest

from flows.request import BUILT_IN
from storage.digest import JsonObject
from tasks.workload import read_workload, workload_schema
from tests.documentation.generated import alternatives
from tests.documentation.pages import ROOT
from tests.tasks.workload.reference_examples import EXAMPLES

PAGE = ROOT / "docs" / "workload-file.md"
FILES = [*BUILT_IN.glob("*.toml"), *(ROOT / "docs" / "examples").glob("*.toml")]
# In the schema of each domain the same, and described once.
COMMON = ("recipe", "benchmark", "gate", "search")
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
        self.shared = [reference for reference, count in users.items() if count > 1 and self._tags(self._at(reference))]
        self.exampled: set[str] = set()

    def page(self) -> Iterator[str]:
        first = next(iter(self.domains.values()))
        yield "## Sections\n"
        yield "\n".join([*self._overview(), ""])
        yield "## Top level\n"
        domain = {**first["properties"]["domain"], "const": None, "enum": list(self.domains)}
        yield from self._table({**first, "properties": {**first["properties"], "domain": domain}})
        yield self._example("Top level")
        yield "## `[[recipe]]`\n"
        recipes = [self._at(each["$ref"]) for each in first["properties"]["recipe"]["items"]["oneOf"]]
        common = set.intersection(*(set(recipe["properties"]) for recipe in recipes))
        yield "Repeat this section for each recipe. Every method has these keys:\n"
        kept = {name: field for name, field in recipes[0]["properties"].items() if name in common}
        yield from self._table({**recipes[0], "properties": {**kept, "method": {**kept["method"], "const": None}}})
        for recipe in recipes:
            method = recipe["properties"]["method"]["const"]
            yield f"### Method `{method}`\n"
            yield from self._section(recipe, method, leave_out=common)
        for section in COMMON[1:]:
            (reference,) = self._references(first["properties"][section])
            yield f"## `[{section}]`\n"
            yield from self._section(self._at(reference), f"[{section}]")
        for name, domain in self.domains.items():
            yield f"## Domain `{name}`\n"
            kinds = "[Sections](#sections) lists the kinds that each section supports."
            yield f"{_one_line(domain['description'])} {kinds}\n"
            for section, reference in self._parts(name, domain):
                yield from self._part(name, section, reference)
        yield "## Shared kinds\n"
        yield "The following kinds are available in several domains.\n"
        for reference in self.shared:
            tag = self._tags(self._at(reference))[0]
            yield f"### Kind `{tag}`\n"
            yield from self._section(self._at(reference), tag)

    def _overview(self) -> Iterator[str]:
        """Which kinds each section has, by domain, with links."""
        yield "| section | domain | kinds |\n| --- | --- | --- |"
        yield "| top-level keys | every domain | [top level](#top-level) |"
        yield "| `[[recipe]]` | every domain | [methods](#recipe) |"
        for section in COMMON[1:]:
            yield f"| `[{section}]` | every domain | [keys](#{section}) |"
        for section in (*SECTIONS, *OWN):
            for name, domain in self.domains.items():
                parts = [reference for part, reference in self._parts(name, domain) if part == section]
                links = ", ".join(
                    f"[{self._tagged(reference) or 'keys'}](#{self._anchor(self._heading(name, section, reference))})"
                    for reference in parts
                    if self._at(reference)["properties"]
                )
                if links:
                    yield f"| `[{section}]` | `{name}` | {links} |"

    def _parts(self, name: str, domain: JsonObject) -> Iterator[tuple[str, str]]:
        """(section, reference) of everything that a domain alone decides."""
        (usual,) = self._kinds(next(iter(self.domains.values())), "benchmark")
        own = [section for section in OWN if section in domain["properties"]]
        for section in (*SECTIONS, *own, "benchmark"):
            for reference in self._kinds(domain, section):
                if section != "benchmark" or self._at(reference)["properties"] != self._at(usual)["properties"]:
                    yield section, reference

    def _part(self, name: str, section: str, reference: str) -> Iterator[str]:
        kind = self._at(reference)
        if reference in self.shared:
            return
        heading = self._heading(name, section, reference)
        key = f"{name}: {', '.join([section, *self._tags(kind)[:1]])}"
        if section == "benchmark":
            yield f"### {heading}\n"
            yield f"In the `{name}` domain, [`[benchmark]`](#benchmark) has the following additional or changed keys:\n"
            known = self._at(self._kinds(next(iter(self.domains.values())), "benchmark")[0])["properties"]
            same = [name for name, field in kind["properties"].items() if field == known.get(name)]
            yield from self._table(kind, leave_out=same)
            yield self._example(key)
        elif kind["properties"]:
            yield f"### {heading}\n"
            yield from self._section(kind, key)

    def _heading(self, name: str, section: str, reference: str) -> str:
        tags = self._tags(self._at(reference))
        if reference in self.shared:
            return f"Kind `{tags[0]}`"
        return f"{name}: {section}{', kind ' if tags else ''}{self._tagged(reference)}"

    def _tagged(self, reference: str) -> str:
        tags = self._tags(self._at(reference))
        return alternatives(f"`{tag}`" for tag in tags) if tags else ""

    def _anchor(self, heading: str) -> str:
        return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")

    def _example(self, key: str) -> str:
        self.exampled.add(key)
        return f"```toml\n{EXAMPLES[key].strip()}\n```\n"

    def _section(self, schema: JsonObject, example: str, leave_out: Iterable[str] = ()) -> Iterator[str]:
        yield _one_line(schema["description"]) + "\n"
        yield self._example(example)
        yield from self._table(schema, leave_out=(*leave_out, "kind"))

    def _table(self, schema: JsonObject, leave_out: Iterable[str] = ()) -> Iterator[str]:
        rows = []
        for name, field in schema["properties"].items():
            if name in leave_out:
                continue
            default = "required" if name in schema.get("required", ()) else self._value(field.get("default"))
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
            return alternatives(self._choices(field))
        if "oneOf" in field:
            return "table"
        if "anyOf" in field:
            return alternatives(self._choices(field))
        match field.get("type"):
            case "array":
                return f"list of {self._type(field['items'])}"
            case "object" if isinstance(field.get("additionalProperties"), dict):
                return f"table of {self._type(field['additionalProperties'])}".replace(
                    "table of list ", "table of lists "
                )
            case "integer" | "number" as kind:
                return "".join([kind, *self._bounds(field)])
            case "string":
                return "`module:callable`" if ":[A-Za-z_]" in field.get("pattern", "") else "text"
            case kind:
                return {"object": "table", "boolean": "`true` or `false`"}.get(str(kind), "any")

    def _choices(self, field: JsonObject) -> list[str]:
        """The values or types of which a field has one."""
        if "enum" in field:
            return [self._value(value) for value in field["enum"]]
        parts = [each for each in field.get("anyOf", ()) if each.get("type") != "null"]
        return [choice for part in parts for choice in self._choices(part)] or [self._type(field)]

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

    def _tags(self, schema: JsonObject) -> list[str]:
        kind = schema.get("properties", {}).get("kind", {})
        return [str(tag) for tag in kind.get("enum", [kind["const"]] if "const" in kind else [])]

    def _domain(self, reference: str) -> str:
        return str(self._at(reference)["properties"]["domain"]["const"])

    def _at(self, reference: str) -> JsonObject:
        found: JsonObject = self.definitions[reference.removeprefix("#/$defs/")]
        return found


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def sections() -> Iterator[str]:
    """The page's lines."""
    return filter(None, Reference(workload_schema()).page())


def test_every_section_has_an_example_that_the_schema_takes() -> None:
    reference = Reference(workload_schema())
    list(reference.page())
    assert reference.exampled == set(EXAMPLES)
    for example in map(tomllib.loads, EXAMPLES.values()):
        for section, content in example.items():
            places = [domain["properties"].get(section) for domain in reference.domains.values()]
            validators = [
                jsonschema.Draft202012Validator({**place, "$defs": reference.definitions}) for place in places if place
            ]
            assert any(validator.is_valid(content) for validator in validators), (section, content)


def test_every_key_has_a_description() -> None:
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
        ('domain = "language-model"', 'domain = "sequence"'),
    ],
)
@pytest.mark.slow
def test_the_schema_and_the_reader_refuse_the_same_files(old: str, new: str) -> None:
    text = (BUILT_IN / "word-lm.toml").read_text(encoding="utf-8")
    assert old in text
    validator = jsonschema.Draft202012Validator(workload_schema())
    assert not validator.is_valid(tomllib.loads(text.replace(old, new)))
