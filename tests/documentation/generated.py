"""Parts of pages that are written from the code, between two markers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# Defaults of settings that depend on the host.
HOST_DEFAULTS = {"workers": "the lower of 4 and the number of processors"}
END = "<!-- End of the generated part -->"


def rewritten(page: Path, module: str, lines: Iterable[str]) -> str:
    """The page with the part that `module` generates written again."""
    text = page.read_text(encoding="utf-8")
    marker = f"<!-- Generated: python -m {module} -->"
    before, found, rest = text.partition(marker)
    assert found, f"{page.name} needs the line {marker}"
    _, found, after = rest.partition(END)
    assert found, f"{page.name} needs the line {END}"
    return "\n".join([f"{before}{marker}\n", *lines, f"\n{END}{after}"])


def alternatives(values: Iterable[str]) -> str:
    """Values as a list in prose: ``a, b or c``."""
    *others, last = values
    return f"{', '.join(others)} or {last}" if others else last
