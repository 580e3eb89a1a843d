from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation.generated import MARKER, rewritten
from tests.documentation.reference import PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.slow  # imports every command
def test_a_page_matches_the_code(page: Path) -> None:
    written = page.read_text(encoding="utf-8")
    assert MARKER in written
    assert written == rewritten(written, PAGES[page]()), "Write it again: python -m tests.documentation.reference"
