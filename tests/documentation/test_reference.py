from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation.commands_reference import PAGE
from tests.documentation.generated import rewritten
from tests.documentation.reference import PAGES


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page == PAGE)) for page in PAGES],  # all commands
)
def test_a_page_matches_the_code(page: Path) -> None:
    written = page.read_text(encoding="utf-8")
    assert written == rewritten(written, PAGES[page]()), "Write it again: python -m tests.documentation.reference"
