"""Modules that pages name are there."""

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
