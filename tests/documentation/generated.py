"""Parts of pages that are written from the code, between two markers."""

from __future__ import annotations

from collections.abc import Iterable

# Defaults of settings that depend on the host.
HOST_DEFAULTS = {"workers": "the lower of 4 and the number of processors"}
MARKER = "<!-- Generated: python -m tests.documentation.reference -->\n"
END = "\n<!-- End of the generated part -->"


def rewritten(page: str, lines: Iterable[str]) -> str:
    """The page with its generated part written again."""
    before, found, rest = page.partition(MARKER)
    assert found, f"the page needs the line {MARKER}"
    _, found, after = rest.partition(END)
    assert found, f"the page needs the line {END}"
    return "\n".join([f"{before}{MARKER}", *lines, f"{END}{after}"])


def alternatives(values: Iterable[str]) -> str:
    """Values as a list in prose: ``a, b or c``."""
    *others, last = values
    return f"{', '.join(others)} or {last}" if others else last
