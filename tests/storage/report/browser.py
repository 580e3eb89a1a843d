"""Chromium without a window."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def run_browser(scratch: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it with a profile of its own; a test that needs one is skipped where there is none."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
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
    return subprocess.run([browser, *options, *arguments], capture_output=True, text=True, timeout=300, check=True)
