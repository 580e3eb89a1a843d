"""The pages as a site: built with warnings as errors, every link and anchor followed, nothing from the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.documentation.pages import MARKDOWN, PAGES, ROOT, Document
from tests.storage.report.browser import run_browser

NETWORK = re.compile(r"url\(\s*['\"]?(?:https?:)?//|@import\s+['\"](?:https?:)?//")
# Where an address is fetched as the page is shown, rather than followed by a click.
FETCHED = {
    "img": "src",
    "script": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
FETCHED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "modulepreload", "manifest"}


@dataclass
class Html(HTMLParser):
    """What a built page refers to, and what can be referred to in it."""

    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    content: Counter[str] = field(default_factory=Counter)
    in_content: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "article":
            self.in_content = True
        if self.in_content:
            self.content[tag] += 1
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and set(given.get("rel", "").split()) & FETCHED_LINKS:
            self.fetched.append(given["href"])
        elif tag in FETCHED and FETCHED[tag] in given:
            self.fetched.append(given[FETCHED[tag]])

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self.in_content = False


def read_html(file: Path) -> Html:
    page = Html()
    page.feed(file.read_text(encoding="utf-8"))
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Html]:
    # 404.html is served for any address and therefore names its parts from the server's root.
    return {file: read_html(file) for file in site.rglob("*.html") if file.name != "404.html"}


@pytest.mark.slow
def test_every_link_of_the_site_leads_to_a_file_and_an_anchor(site: Path, built: dict[Path, Html]) -> None:
    broken = []
    for file, page in built.items():
        for link in (*page.links, *page.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            missing = not target.is_relative_to(site) or not target.is_file()
            if missing or (parts.fragment and unquote(parts.fragment) not in built[target].anchors):
                broken.append(f"{file.name}: {link}")
    assert not broken


@pytest.mark.slow
def test_nothing_of_the_site_is_fetched_from_elsewhere(site: Path, built: dict[Path, Html]) -> None:
    assert not [(file.name, link) for file, page in built.items() for link in page.fetched if "//" in link]
    styles = [*built, *site.rglob("*.css")]
    assert not [file.name for file in styles if NETWORK.search(file.read_text(encoding="utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_the_same_tables_lists_and_blocks_on_the_site(
    page: Path, site: Path, built: dict[Path, Html]
) -> None:
    """Site and repository browser read two dialects: where a list or table needs a blank line, one sees prose."""
    shown = built[site / page.with_suffix(".html").name].content
    for tag in ("tr", "li", "pre", "img", "h2", "h3"):
        assert shown[tag] == Document.read(page).tags[tag], tag


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.relative_to(ROOT).as_posix())
@pytest.mark.slow
def test_every_relative_link_works_in_a_repository_browser(page: Path) -> None:
    broken = []
    for link in Document.read(page).links:
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not target.exists() or (parts.fragment and parts.fragment not in Document.read(target).anchors):
            broken.append(link)
    assert not broken


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_finds_pages_on_a_site_that_is_opened_from_files(site: Path, tmp_path: Path) -> None:
    address = f"{(site / 'index.html').as_uri()}?q=calibration"
    shown = run_browser(tmp_path, "--virtual-time-budget=10000", "--dump-dom", address).stdout
    results = re.findall(r'<a href="([^"]+)" class="md-search-result__link"', shown)
    assert (site / "workload-file.html").as_uri() in {link.split("#")[0] for link in results}
