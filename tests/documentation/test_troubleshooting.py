"""The messages that docs/troubleshooting.md explains are messages of the product."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.documentation.pages import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
CHECKS = re.findall(r"(?m)^\| `(.+?)` \|", PAGE)


def quoted(heading: str) -> str:
    """Return the message in a heading, or "" for a heading in words."""
    match = re.fullmatch(r"(`+) ?(.+?) ?\1", heading)
    return match[2] if match else ""


MESSAGES = [message for heading in re.findall(r"(?m)^### (.+)$", PAGE) if (message := quoted(heading))]


def text(node: ast.AST) -> str:
    """Return a string expression's text, with "…" for each computed part; "" for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text(part) or "…" for part in node.values)
    return ""


@cache
def texts() -> str:
    """Return every string of the product, and its SQL, each with "…" for computed parts."""
    strings = [
        text(node)
        for package in ("flows", "tasks", "storage")
        for file in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    ]
    strings += [file.read_text(encoding="utf-8") for file in (ROOT / "storage").rglob("*.sql")]
    return "\n".join(filter(None, strings))


@pytest.mark.slow
@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_on_the_page_exists(message: str) -> None:
    parts = [re.escape(part) for part in message.split("…")]
    assert re.search("[^\n]*?".join(parts), texts()), message


@pytest.mark.slow
def test_the_page_names_every_check_that_may_advise() -> None:
    for check in CHECKS:
        assert f"\n{check}\n" in texts(), check
    assert len(CHECKS) == 8
    assert len(MESSAGES) > 30
