"""Parts of pages that are written from the code, below a marker."""

from __future__ import annotations

from collections.abc import Iterable

# Defaults of settings that depend on the host.
HOST_DEFAULTS = {"workers": "the lower of 4 and the number of processors"}
MARKER = "<!-- Generated: python -m tests.documentation.reference -->\n"
END = "\n<!-- End of the generated part -->"


def rewritten(page: str, lines: Iterable[str]) -> str:
    """The page with its generated part written again."""
    before, marker, rest = page.partition(MARKER)
    assert marker, f"the page needs the line {MARKER}"
    _, end, after = rest.partition(END)
    return "\n".join([f"{before}{MARKER}", *lines, *([f"{end}{after}"] if end else [])])


def alternatives(values: Iterable[str]) -> str:
    """Values as a list in prose: ``a, b or c``."""
    *others, last = values
    return f"{', '.join(others)} or {last}" if others else last
