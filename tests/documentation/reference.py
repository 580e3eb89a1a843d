"""The reference pages, which ``python -m tests.documentation.reference`` writes again from the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.documentation import commands_reference, test_runtime_reference, test_settings_reference
from tests.documentation.generated import rewritten
from tests.storage.results import test_documentation
from tests.tasks.workload import test_reference

PAGES: dict[Path, Callable[[], Iterator[str]]] = {
    commands_reference.PAGE: commands_reference.sections,
    test_settings_reference.PAGE: test_settings_reference.settings_table,
    test_reference.PAGE: test_reference.sections,
    test_documentation.PAGE: test_documentation.sections,
    test_runtime_reference.PAGE: test_runtime_reference.tables,
}

if __name__ == "__main__":
    for page, lines in PAGES.items():
        page.write_text(rewritten(page.read_text(encoding="utf-8"), lines()), encoding="utf-8")
