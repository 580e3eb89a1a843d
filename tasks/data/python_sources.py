"""The built-in task that classifies texts from Python's standard library as comments, docstrings, messages or code."""

from __future__ import annotations

import ast
import io
import random
import re
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from tasks.data.sections import PythonSources

Sample = tuple[str, str]  # text and class
Columns = dict[str, list[str]]
CLASSES = ("code", "comment", "docstring", "message")
# Leave out tests, generated tables, and packages that some distributions lack.
_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "encodings", "ensurepip"}
)
_FEWEST_WORDS, _MOST_CHARACTERS, _MOST_LINES = 3, 600, 3
_WORD = re.compile(r"[A-Za-z]{2,}")
_MOST_PER_FILE = 40  # maximum number of texts per class and file, so that a large file cannot dominate a class


def library_files() -> dict[str, Path]:
    """Return the standard library's source files, keyed and sorted by relative path."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {path.relative_to(root): path for path in sorted(root.rglob("*.py"))}
    return {str(name): path for name, path in files.items() if not _LEFT_OUT & set(name.parts)}


def sample_sources(data: PythonSources) -> dict[str, Columns]:
    """Return each split's columns ``text`` and ``label``."""
    units: dict[str, list[Path]] = {}
    for name, path in library_files().items():
        units.setdefault(name.partition("/")[0].removesuffix(".py"), []).append(path)
    names = sorted(units)
    random.Random(data.seed).shuffle(names)
    sizes = {"test": data.test, "valid": data.valid, "train": data.train + data.calibration}
    samples: dict[str, list[Sample]] = {}
    used: set[str] = set()
    for split, size in sizes.items():
        samples[split] = _draw(names, units, -(-size // len(CLASSES)), used, data.seed)[:size]
    drawn = samples["train"]
    samples |= {"calibration": drawn[: data.calibration], "train": drawn[data.calibration :]}
    columns: dict[str, Columns] = {}
    for split, rows in samples.items():
        columns[split] = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    return columns


def _draw(names: list[str], units: Mapping[str, list[Path]], count: int, used: set[str], seed: int) -> list[Sample]:
    """Take modules from the end of `names` until every class has `count` texts; return the texts in random order."""
    by_class: dict[str, list[Sample]] = {label: [] for label in CLASSES}
    while names and (short := [label for label, samples in by_class.items() if len(samples) < count]):
        for path in units[names.pop()]:
            for text, label in texts_of(path, short):
                if text not in used and len(by_class[label]) < count:
                    used.add(text)
                    by_class[label].append((text, label))
    mixed = [sample for samples in by_class.values() for sample in samples]
    random.Random(seed).shuffle(mixed)
    return mixed


def texts_of(path: Path, classes: Sequence[str] = CLASSES) -> Iterator[Sample]:
    """Yield a file's texts in the given classes, with white space collapsed; skip a file that Python cannot parse."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        for label in classes:
            flat = (" ".join(text.split()) for text in _FINDERS[label](source, tree))
            usable = (
                text for text in flat if len(text) <= _MOST_CHARACTERS and len(_WORD.findall(text)) >= _FEWEST_WORDS
            )
            yield from ((text, label) for text in islice(usable, _MOST_PER_FILE))
    except (SyntaxError, ValueError, OSError, tokenize.TokenError):
        return  # the file requires another Python version, or is not UTF-8


def _docstrings(source: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (ast.get_docstring(node) or "").split("\n\n")


def _messages(source: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def _code(source: str, tree: ast.Module) -> Iterator[str]:
    lines = source.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.Return | ast.If | ast.For | ast.With | ast.Expr):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue  # a docstring
            end = min(node.end_lineno or node.lineno, node.lineno - 1 + _MOST_LINES)
            yield "\n".join(lines[node.lineno - 1 : end]).partition("#")[0]


def _comments(source: str, tree: ast.Module) -> Iterator[str]:
    # Comments on consecutive lines count as one text.
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield " ".join(block)
                block = []
            block.append(token.string.lstrip("#!: "))
            last = token.start[0]
    yield " ".join(block)


_FINDERS = {"code": _code, "comment": _comments, "docstring": _docstrings, "message": _messages}
