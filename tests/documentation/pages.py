"""The documentation's Markdown as repository browsers read it (CommonMark with tables), and the commands in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
# The site shows docs/ and two of the other pages.
MARKDOWN = (
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
)

_SHELL = re.compile(r"(?m)^(?:\$ )?(?:nightquant|python|prefect|duckdb|make|openssl|dask|pip|\. |export [A-Z])\b")
_NOT_RUN = re.compile(r"<!-- not run: (?P<why>[^>]{10,}) -->\s*")


@dataclass(frozen=True)
class Block:
    """A block of shell commands on a page; `not_run` says why no test runs it, "" where one does."""

    page: str
    line: int
    text: str
    not_run: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Document:
    """What stands on a page."""

    links: tuple[str, ...]
    anchors: frozenset[str]
    shell: tuple[Block, ...]
    prose_code: tuple[str, ...]

    @classmethod
    @cache
    def read(cls, page: Path) -> Document:
        """Parse a page."""
        tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
        inline = [child for token in tokens for child in token.children or ()]
        targets = [
            token.attrGet("href") or token.attrGet("src") for token in inline if token.type in ("link_open", "image")
        ]
        return cls(
            links=tuple(str(target) for target in targets if target),
            anchors=frozenset(_anchors(tokens)),
            shell=tuple(_shell_blocks(page, tokens)),
            prose_code=tuple(token.content for token in inline if token.type == "code_inline"),
        )


def _anchors(tokens: list[Token]) -> Iterator[str]:
    """The names that repository browsers give to headings."""
    seen: Counter[str] = Counter()
    for opened, text in pairwise(tokens):
        if opened.type == "heading_open":
            plain = "".join(child.content for child in text.children or ())
            name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            yield f"{name}-{seen[name]}" if seen[name] else name
            seen[name] += 1


def _shell_blocks(page: Path, tokens: list[Token]) -> Iterator[Block]:
    """Blocks that say ``sh``, and those without a language that hold a command."""
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type not in ("fence", "code_block"):
            continue
        language = token.info.split()[:1]
        if language in (["sh"], ["bash"], ["console"]) or (not language and _SHELL.search(token.content)):
            marker = _NOT_RUN.fullmatch(before.content) if before is not None and before.type == "html_block" else None
            line = token.map[0] + 1 if token.map else 0
            why = marker["why"] if marker else ""
            yield Block(page.relative_to(ROOT).as_posix(), line, token.content, why)
