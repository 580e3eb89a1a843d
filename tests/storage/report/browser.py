"""Chromium: a page as people see it, and what it measures of one at a width."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.storage.report.accessibility import Facts

# Each page is shown in a frame of its own, whose width its media queries follow, and looked at from outside: what is
# measured is the page itself, not a copy with a script in it.
_FRAME = '<iframe style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe>'
_HARNESS = '<!DOCTYPE html><meta charset="utf-8">{frames}<pre id="facts"></pre><script>{script}</script>'
_FACTS = Path(__file__).with_name("facts.js")


def find_browser() -> str:
    """The browser's command; a test that needs one is skipped where there is none."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    return browser


def run_browser(scratch: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it without a window, with a profile of its own."""
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={scratch}/profile",
        "--enable-logging=stderr",
    ]
    return subprocess.run(
        [find_browser(), *options, *arguments], capture_output=True, text=True, timeout=300, check=True
    )


def facts_of(pages: Sequence[tuple[str, int]], scratch: Path) -> list[Facts]:
    """What `facts.js` finds in pages, each with its width in CSS pixels; one start of the browser for all of them."""
    target = scratch / "harness.html"
    frames = "".join(_FRAME.format(width=width, page=html.escape(page)) for page, width in pages)
    target.write_text(_HARNESS.format(frames=frames, script=_FACTS.read_text(encoding="utf-8")), encoding="utf-8")
    dump = run_browser(scratch, "--hide-scrollbars", "--virtual-time-budget=10000", "--dump-dom", target.as_uri())
    found = re.search(r'<pre id="facts">(.+?)</pre>', dump.stdout, re.DOTALL)
    assert found, dump.stderr
    facts: list[Facts] = json.loads(html.unescape(found[1]))
    return facts
