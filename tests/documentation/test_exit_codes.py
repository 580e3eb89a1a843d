"""The table of exit codes in docs/troubleshooting.md has the code of every error, and no other."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

from flows.execution.server import ServerGoneError
from storage.errors import NightquantError
from tasks.environment.libraries import LibraryError
from tasks.run.record import GOOD, REGRESSED, WORK_FAILED
from tests.documentation.pages import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"


def kinds(error: type[NightquantError]) -> Iterator[type[NightquantError]]:
    yield error
    for narrower in error.__subclasses__():
        yield from kinds(narrower)


def test_the_table_has_every_code() -> None:
    errors = set(kinds(NightquantError))
    assert {LibraryError, ServerGoneError} < errors
    signals = {128 + signal.SIGINT, 128 + signal.SIGTERM}
    shown = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(map(int, shown)) == {GOOD, WORK_FAILED, REGRESSED, *signals, *(error.exit_code for error in errors)}
    assert len(shown) == len(set(shown))
