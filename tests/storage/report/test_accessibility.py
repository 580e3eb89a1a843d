from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.report.accessibility import ratio_of, violations
from tests.storage.report.browser import facts_of, run_browser
from tests.storage.report.nights import LAST

PLOT = """<svg viewBox="0 0 100 50" style="width: 100%" role="img" aria-labelledby="t" aria-describedby="d">
<title id="t">A plot</title><desc id="d">Two points.</desc><text x="5" y="20" style="font-size: 10px">one</text>
<text x="5" y="45" style="font-size: 10px">two</text></svg>"""
GOOD = f"""<!DOCTYPE html><html lang="en"><head><title>A page</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body {{ color: #555; margin: 8px }}</style></head><body>
<main><h1 id="top">Night</h1><section aria-label="First"><h2>Decisions</h2>
<p><a href="#top" style="color: #00509e">to the top</a></p><ul><li>an item</li></ul>
<table><thead><tr><th scope="col">workload</th><th scope="col">why</th></tr></thead>
<tbody><tr><th scope="row">word-lm</th><td>it passes</td></tr></tbody></table></section>{PLOT}</main></body></html>"""
DEFECTS = {
    "document: no language": (' lang="en"', ""),
    "document: no title": ("<title>A page</title>", ""),
    "document: 0 main parts": ("main>", "div>"),
    "document: viewport": ("initial-scale=1", "initial-scale=1, user-scalable=no"),
    "headings: levels": ("h1", "h2"),
    "headings: h4 follows h1": ("h2", "h4"),
    "headings: an empty h2": ("Decisions", ""),
    "images: image without": ('role="img" ', ""),
    "images: image without role, name": ('aria-labelledby="t"', ""),
    "images: image without role, name or description": ("Two points.", ""),
    "tables: header without text or scope: 'why'": ('<th scope="col">why', "<th>why"),
    "tables: no column headers": ("thead", "tbody"),
    "tables: a row of 2 cells and 0 headers": ('<th scope="row">word-lm</th>', "<td>word-lm</td>"),
    "tables: a row of 1 cells": ("<td>it passes</td>", ""),
    "names: SECTION without": (' aria-label="First"', ""),
    "names: two regions": ("</section>", '</section><section aria-label="First"></section>'),
    "names: link 'to the top' to #nowhere": ("#top", "#nowhere"),
    "names: id top twice": ("<h2>", '<h2 id="top">'),
    "lists: list of": ("<li>an item</li>", "<p>an item</p>"),
    "contrast: 2.85:1 in 'it passes'": ("#555", "#999"),
    "contrast: 1.": ('font-size: 10px">two', 'font-size: 10px; fill: #ddd">two'),
    "overflow: ": ("it passes", "x" * 200),
    "plots: cut in A plot: 'one'": ('x="5" y="20"', 'x="95" y="20"'),
    "plots: on each other in A plot": ('y="45"', 'y="22"'),
    "plots: 7.": ('font-size: 10px">two', 'font-size: 2px">two'),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Violations by defect; those of the sound page are ""'s."""
    pages = {"": GOOD} | {what: GOOD.replace(*change) for what, change in DEFECTS.items()}
    assert len(set(pages.values())) == len(pages)
    facts = facts_of([(page, 400) for page in pages.values()], tmp_path_factory.mktemp("browser"))
    return {what: violations(each) for what, each in zip(pages, facts, strict=True)}


@pytest.mark.browser
def test_a_sound_page_passes(found: dict[str, list[str]]) -> None:
    assert found[""] == []


@pytest.mark.browser
@pytest.mark.parametrize("what", DEFECTS)
def test_every_check_finds_its_defect(what: str, found: dict[str, list[str]]) -> None:
    assert any(each.startswith(what) for each in found[what]), found[what]


@pytest.mark.browser
def test_the_report_passes_every_check_at_every_width(full_page: Path, tmp_path: Path) -> None:
    widths = (400, 700, 1181, 1280)
    page = full_page.read_text(encoding="utf-8").replace("<details>", "<details open>")
    for width, facts in zip(widths, facts_of([(page, width) for width in widths], tmp_path), strict=True):
        assert facts["width"] == width
        assert len([image for image in facts["images"] if image["role"] == "img"]) == 10
        assert violations(facts) == []


@pytest.mark.browser
def test_it_is_shown_without_a_complaint(full_page: Path, tmp_path: Path) -> None:
    shown = run_browser(tmp_path, "--dump-dom", full_page.as_uri())
    assert f"Night of {LAST}" in shown.stdout
    assert "CONSOLE" not in shown.stderr


@pytest.mark.slow
def test_contrast_is_that_of_the_standard() -> None:
    assert ratio_of("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert ratio_of("rgb(118, 118, 118)", "rgb(255, 255, 255)") == pytest.approx(4.54, abs=0.005)
