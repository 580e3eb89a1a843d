"""Every command on a page exists, with its options."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from flows.cli import nightquant
from tasks.workload.workload import Workload
from tests.documentation.pages import MARKDOWN, ROOT, Document
from tests.tasks.domains.text_encoder.encoders import write_directory

# What has changed is history; it may name commands that are gone.
LIVING = [page for page in MARKDOWN if page.name != "CHANGELOG.md"]


def whole_lines(text: str) -> Iterator[str]:
    """The lines of a block; those between two quotation marks are one."""
    begun = ""
    for line in text.splitlines(keepends=True):
        begun += line
        try:
            shlex.split(begun, comments=True)
        except ValueError:
            continue
        yield begun
        begun = ""


def commands_shown() -> Iterator[tuple[str, list[str]]]:
    """(place, words) of every command of this project on a page, in prose and in blocks, run or not."""
    for page in LIVING:
        document = Document.read(page)
        lines = [(page.name, code) for code in document.prose_code]
        lines += [(str(block), line.removeprefix("$ ")) for block in document.shell for line in whole_lines(block.text)]
        for place, line in lines:
            if re.match(r"(?:\.venv/bin/)?(?:nightquant|python|make) \S", line):
                yield place, shlex.split(line.replace("\n", " "), comments=True)


@pytest.mark.slow
def test_every_subcommand_and_option_on_a_page_exists() -> None:
    seen = 0
    for place, (program, *words) in commands_shown():
        if not program.endswith("nightquant"):
            continue
        command: click.Command | None = nightquant
        context = click.Context(nightquant)
        while isinstance(command, click.Group) and words:
            command = command.get_command(context, words.pop(0))
        assert command is not None, place
        command.make_parser(context).parse_args(words)  # click.NoSuchOption, where it has none of that name
        seen += 1
    assert seen > 40


@pytest.mark.slow
def test_make_installs_extras_that_exist() -> None:
    """A comma in the argument of a Make function ends it, and half a requirement was installed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for target in ("nightly", "test"):
        dry = subprocess.run(
            ["make", "--dry-run", "--always-make", target], cwd=ROOT, capture_output=True, text=True, check=True
        )
        wanted = re.findall(r"--editable '(.*?)'", dry.stdout)
        assert wanted
        for requirement in wanted:
            assert re.sub(r"^\.\[(\w+)\]$", r"\1", requirement) in extras


YOUR_MODEL = ("your-model.md", "data-and-metrics.md", "text-encoder.md", "vision.md")


def toml_blocks(page: str) -> list[str]:
    return re.findall(r"(?ms)^```toml\n(.*?)^```$", (ROOT / "docs" / page).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_sections_that_the_pages_about_your_model_show_are_those_of_their_examples(tmp_path: Path) -> None:
    write_directory(tmp_path / "encoder")  # whose config.json a workload file is read with
    seen = set()
    for text in (block for page in YOUR_MODEL for block in toml_blocks(page)):
        (name,) = re.findall(r"\A# ([\w-]+\.toml)\n", text)
        example = tomllib.loads((ROOT / "docs" / "examples" / name).read_text(encoding="utf-8"))
        shown = tomllib.loads(text)
        for section, keys in shown.items():
            assert keys.items() >= example[section].items(), (name, section)
        Workload.model_validate(example | shown, context={"folder": str(tmp_path)})
        seen.add(name)
    assert seen == {"power.toml", "encoder.toml", "classifier.toml", "photos.toml"}


@pytest.mark.slow
@pytest.mark.parametrize(("page", "least"), [("recipes.md", 8), ("runtimes.md", 1), ("gate.md", 3)])
def test_the_recipes_and_gates_on_a_page_are_valid(page: str, least: int) -> None:
    built_in = tomllib.loads((ROOT / "flows" / "workloads" / "resnet18.toml").read_text(encoding="utf-8"))
    blocks = toml_blocks(page)
    assert len(blocks) >= least
    for text in blocks:
        shown = tomllib.loads(text)
        recipes = {recipe["name"]: recipe for recipe in (*built_in["recipe"], *shown.pop("recipe", []))}
        Workload.model_validate(built_in | shown | {"recipe": list(recipes.values())})
