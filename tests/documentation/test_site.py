"""The pages as a site: built with warnings as errors, every link and anchor followed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.documentation.pages import MARKDOWN, ROOT, Document


@dataclass
class Html(HTMLParser):
    """What a built page refers to, and what can be referred to in it."""

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.links += [given[name] for name in ("href", "src") if name in given]


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


@pytest.mark.slow
def test_every_link_of_the_site_leads_to_a_file_and_an_anchor(site: Path) -> None:
    # 404.html is served for any address and therefore names its parts from the server's root.
    built = {file: Html() for file in site.rglob("*.html") if file.name != "404.html"}
    for file, page in built.items():
        page.feed(file.read_text(encoding="utf-8"))
    broken = []
    for file, page in built.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            missing = not target.is_relative_to(site) or not target.is_file()
            if missing or (parts.fragment and unquote(parts.fragment) not in built[target].anchors):
                broken.append(f"{file.name}: {link}")
    assert not broken


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
