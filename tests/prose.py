"""Find words and patterns that the project's English avoids in docstrings, comments, messages and pages.

``python -m tests.prose`` counts the findings by file and exits with 1 if there are any; ``--only PATH`` shows them.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PACKAGES = ("flows", "tasks", "storage")
_FILES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/*.md", *(f"{name}/**/*.py" for name in _PACKAGES))

# Kinds of text: the first sentence of a function's docstring or an option's help, the first sentence of another
# docstring, all other text of the code, and all text of a page.
FUNCTION, OTHER, CODE, PAGE = ALL = ("function", "other", "code", "page")
# No imperative is one of these words, begins with a small letter, or ends in a single s.
_NO_VERB = (
    r"^(?![A-Z][a-z]*[a-rt-z]\b|[A-Z][a-z]*ss\b)|^(A|An|The|This|That|These|Those|Its|Their|Whether|How|What|Which|Who"
    r"|Where|When|If|All|Each|Every|Some|No|None|One|Two|Of|In|On|At|To|By|For|From|With|Without|As|Only|Your)\b"
)
# For each rule, what to do, the kinds of text to check, and the pattern to avoid.
RULES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "length": ("write at most 30 words", ALL, r"(?>[^A-Za-z]*[A-Za-z][\w'’-]*){31}"),
    "imperative": ("begin with an imperative verb", (FUNCTION,), _NO_VERB),
    "fragment": ("name the thing", (OTHER,), r"^(Its|Their|Of)\b"),
    "incumbent": ("write current bundle", (PAGE,), r"(?i)\bincumbent"),
    "clause": ("begin with a noun", (OTHER, CODE, PAGE), r"^(What|Who)\b.*[^?]$|(?i:\bwhoever\b)"),
    "negation": ("negate the verb", ALL, r"(?<!here )\b(is|are|was|were) (no (?!longer|more|less|fewer)|none\b)"),
    "that of": ("repeat the noun", ALL, r"(?i)\b(that|those) of\b"),
    "possessive": ("repeat the noun", ALL, r"(?i)\b(ours|theirs)\b"),
    "conjunction": ("write because", ALL, r", for (it|they|there|then|nothing|neither)\b"),
    "condition": ("write if", ALL, r"(?i)\bwhere (it|they|there) (is|are) (no|none|not)\b"),
    "anew": ("write again, or re-", ALL, r"(?i)\b(anew|once more)\b"),
    "dearest": ("write most expensive", ALL, r"(?i)\bdearest\b"),
    "hold against": ("write check against", ALL, r"(?i)\b(hold|holds|held|holding) (\w+ )?against\b"),
    "told": ("write notify, report or pass", ALL, r"(?i)\btold\b"),
    "handed over": ("write published", ALL, r"(?i)\bhanded over\b"),
    "is ended": ("write is stopped, or can be deleted", ALL, r"(?i)\b(is|are|be) ended\b|\bmay go\b"),
}
# Patterns of texts in which everything is right, with the reason.
EXEMPT = {r'"[^"]+", [A-Z].*\b(19|20)\d\d\b': "a citation", "^incumbent$": "the glossary's entry"}
_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!cf)(?<!vs)[.!?][\"')\]*]*\s+(?=[\"'(`*\[]*[A-Z0-9`]|nightquant )")
_MESSAGE = re.compile(r"(Error|BadParameter|ClickException|Refused|Broken|echo|note|option|argument)$")
_NAMED = ("Parameters", "Attributes", "Returns", "Yields", "Raises")
Sentence = tuple[int, str, str]  # first line of its paragraph, kind, text


def sentences(kind: str, lines: Iterable[tuple[int, str]]) -> Iterator[Sentence]:
    """Split lines into paragraphs and sentences; the word CODE replaces code, and the text of a link the link."""
    block: list[tuple[int, str]] = []
    for number, line in [*lines, (0, "")]:
        if line.strip():
            block.append((number, line))
        elif block:
            text = re.sub(r"``[^`]+``|`[^`]+`", "CODE", " ".join(" ".join(line for _, line in block).split()))
            for part in _END.split(re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "")):
                yield block[0][0], kind, part.strip()
                kind = PAGE if kind == PAGE else CODE
            block = []


def of_python(source: str) -> Iterator[Sentence]:
    """Yield the sentences of a module's docstrings, messages and comments."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for place, item in enumerate(body if isinstance(body, list) else ()):
            if isinstance(item, ast.Expr) and (text := _literal(item.value)):
                is_function = place == 0 and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                is_function = is_function and "property" not in " ".join(map(ast.unparse, node.decorator_list))
                yield from sentences(FUNCTION if is_function else OTHER, _docstring(item.lineno, text))
        if isinstance(node, ast.Call) and _MESSAGE.search(ast.unparse(node.func)):
            for name, value in [("", each) for each in node.args] + [(each.arg, each.value) for each in node.keywords]:
                if " " in (text := _literal(value)):
                    yield from sentences(FUNCTION if name == "help" else CODE, [(value.lineno, text)])
    lines: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|pragma|fmt:|!)", token.string):
            lines += [] if lines and lines[-1][0] == token.start[0] - 1 else [(0, "")]
            lines.append((token.start[0], token.string.lstrip("# ")))
            lines += [] if token.line.lstrip().startswith("#") else [(0, "")]
    yield from sentences(CODE, lines)


def _literal(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(part) or "CODE" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _docstring(start: int, text: str) -> list[tuple[int, str]]:
    """Return a docstring's lines; examples, and the names in numpydoc's sections, become empty."""
    lines, has_names = [(start, "")], False
    for number, line in enumerate(cleandoc(text).partition("\b")[0].split("\n"), start):
        if line.startswith("---"):
            has_names = lines.pop()[1] in _NAMED
        is_left_out = line.startswith((">>>", "---")) or (has_names and not line.startswith(" "))
        lines.append((number, "" if is_left_out else line))
    return lines


def of_page(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a Markdown page's paragraphs, list items and table cells."""
    code = r"^ *```.*?^ *```|<!--.*?-->|^#.*?$|^ {4}.*?$"  # and headings; four spaces begin code in lists, too
    text = re.sub(rf"(?ms){code}", lambda found: "\n" * found[0].count("\n"), text)
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = re.split(r"(?<!\\)\||\n", re.sub(r"^\s*([-*+]|\d+\.) ", "\n", line))
        lines += [(number, part) for cell in parts for part in (cell, "")][: -1 if len(parts) < 3 else None]
    return sentences(PAGE, lines)


def findings(found: Iterable[Sentence]) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each sentence that breaks a rule, the rule's name and the sentence."""
    for line, kind, text in found:
        is_exempt = any(re.search(pattern, text) for pattern in EXEMPT)
        for name, (_, kinds, pattern) in RULES.items():
            if kind in kinds and not is_exempt and re.search(pattern, text):
                yield line, name, text


def main() -> int:
    """Check the project's text; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="PATH", help="Show the findings in this file or folder.")
    only = parser.parse_args().only.rstrip("/")
    counts, lines = Counter[str](), []
    for file in sorted(file for pattern in _FILES for file in ROOT.glob(pattern)):
        name, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
        if only in ("", name) or name.startswith(f"{only}/"):
            for line, rule, sentence in findings(of_page(text) if file.suffix == ".md" else of_python(text)):
                counts[name] += 1
                lines.append(f"{name}:{line}: {rule}, {RULES[rule][0]}: {sentence}")
    shown = lines if only or len(lines) <= 40 else [f"{count:5} {name}" for name, count in counts.most_common()]
    sys.stdout.write("\n".join([*shown, f"{len(lines)} findings in {len(counts)} files\n"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
