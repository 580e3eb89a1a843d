from __future__ import annotations

import datetime as dt
import html.parser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.commands.query import report as command
from storage.errors import ConfigurationError
from storage.report import write_report
from storage.results.catalog import refresh
from storage.results.writer import ResultsStore
from tests.storage.results.rows import at, baseline, measurement, promotion, write_night

FIRST = dt.date(2026, 3, 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    for index in range(14):
        night = FIRST + dt.timedelta(days=index)
        run = f"run-{index:02}"
        rows = [
            baseline(run, night),
            measurement(run, night, speedup=1.7 if index > 11 else 2.0),
            measurement(run, night, recipe="odd<b>&", status="failed", stage="quantize", error="<script>x</script>"),
        ]
        write_night(folder, night, rows, run)
        ResultsStore(folder).append("promotions", [promotion(run, night)], run, at(night))
    refresh(folder)
    return folder


@pytest.fixture(scope="module")
def page(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("report") / "sub" / "report.html"
    assert write_report(store, None, target) == FIRST + dt.timedelta(days=13)
    return target


class Tags(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_needs_nothing_else(page: Path) -> None:
    tags = Tags(page.read_text(encoding="utf-8")).found
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags}
    links = [
        value for _, attributes in tags for name, value in attributes.items() if name in ("href", "src", "xlink:href")
    ]
    assert links
    assert all(value and value.startswith("#") for value in links)
    assert "@import" not in page.read_text(encoding="utf-8")


def test_what_users_wrote_is_escaped(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "&lt;script&gt;x&lt;/script&gt;" in text
    assert "odd&lt;b&gt;&amp;/eager" in text


def test_it_holds_every_section_and_finding(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for part in (
        "word-lm",
        "slower",
        "quantize",
        "A processor",
        "1.70×",
        "Run run-13",
        "over the fastest float candidate",
    ):
        assert part in text
    assert text.count("<svg ") == 2


def test_it_is_accessible(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    tags = Tags(text).found
    assert '<html lang="en">' in text
    assert all(attributes.get("aria-label") for tag, attributes in tags if tag == "svg")
    assert all(attributes.get("scope") for tag, attributes in tags if tag == "th")
    identifiers = [attributes["id"] for _, attributes in tags if attributes.get("id")]
    targets = {str(attributes["href"])[1:] for tag, attributes in tags if tag == "a"}
    assert targets <= set(identifiers)


def test_the_same_night_yields_the_same_file(store: Path, page: Path, tmp_path: Path) -> None:
    write_report(store, FIRST + dt.timedelta(days=13), tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_an_older_night_is_reported_as_it_was(store: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        command,
        ["--night", "2026-03-01", "-o", str(tmp_path / "r.html"), "--store", str(store)],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Night of 2026-03-01" in text
    assert "Drawn from the second night on." in text
    assert "slower" not in text


def test_a_night_without_results_says_which_there_are(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has nights from 2026-03-01 to 2026-03-14"):
        write_report(store, dt.date(2020, 1, 1), tmp_path / "r.html")


def test_a_place_that_cannot_be_written_is_reported(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_report(store, None, tmp_path)


@pytest.mark.browser
def test_a_real_browser_shows_it_without_a_complaint(page: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    shot = tmp_path / "report.png"
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={tmp_path}/profile",
        "--enable-logging=stderr",
    ]
    dump = subprocess.run(
        [browser, *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=300, check=True
    )
    assert "Night of 2026-03-14" in dump.stdout
    assert dump.stdout.count("<svg ") == 2
    assert not re.findall(r"CONSOLE.*", dump.stderr)
    subprocess.run(
        [browser, *options, "--window-size=1280,1600", f"--screenshot={shot}", page.as_uri()],
        capture_output=True,
        timeout=300,
        check=True,
    )
    assert _colours(shot) > 50


def _colours(shot: Path) -> int:
    from PIL import Image

    with Image.open(shot) as image:
        found = image.convert("RGB").getcolors(maxcolors=1 << 24)
    return len(found or [])
