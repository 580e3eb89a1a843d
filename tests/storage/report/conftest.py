from __future__ import annotations

from pathlib import Path

import pytest

from storage.report import write_report
from tests.storage.report.nights import LAST, fill


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of `tests.storage.report.nights`."""
    folder = tmp_path_factory.mktemp("filled")
    fill(folder)
    return folder


@pytest.fixture(scope="session")
def full_page(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its newest night's report."""
    target = tmp_path_factory.mktemp("report") / "report.html"
    assert write_report(filled, None, target) == LAST
    return target
