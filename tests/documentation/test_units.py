"""The unit files that docs/schedule.md names: systemd accepts them, and what they start is there."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation.pages import ROOT, Document

UNITS = sorted((ROOT / "docs" / "examples" / "systemd").glob("*.service"))


@pytest.mark.slow
def test_the_page_names_every_unit() -> None:
    links = Document.read(ROOT / "docs" / "schedule.md").links
    assert {f"examples/systemd/{unit.name}" for unit in UNITS} <= set(links)
    assert len(UNITS) == 3


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.slow
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    # The environment of this test in the place of the one that the page installs.
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace("/srv/nightquant/.venv/bin", str(Path(sys.executable).parent))
        text = text.replace("/srv/nightquant", str(tmp_path)).replace("User=nightquant", f"User={getpass.getuser()}")
        (tmp_path / unit.name).write_text(text)
    units = [str(tmp_path / unit.name) for unit in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if "nightquant" in line]
    assert (done.returncode, told) == (0, []), done.stderr
