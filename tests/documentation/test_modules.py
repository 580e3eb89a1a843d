"""The files and folders of the source that pages name exist."""

from __future__ import annotations

import re

import pytest

from tests.documentation.pages import ROOT

_NAMED = re.compile(r"`((?:flows|tasks|storage|tests|benchmarks)/[\w./-]*)`")


@pytest.mark.slow
def test_every_file_and_folder_of_the_source_that_a_page_names_exists() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {(page.name, path) for page in pages for path in _NAMED.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert [(page, path) for page, path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_module_in_the_tree_of_the_architecture_exists() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    layer, named = "", []
    for line in page.split("```\n")[1].splitlines():
        if not line.startswith(" "):
            layer = line.partition("/")[0]
        else:
            names = line.strip().partition("  ")[0]
            named += [f"{layer}/{name.rstrip('/')}" for name in re.split(r",\s*", names.rstrip(","))]
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).is_dir() and not (ROOT / f"{name}.py").is_file()] == []
