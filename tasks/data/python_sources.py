"""The built-in task: is a text of Python's standard library a comment, a docstring, an error message or code?"""

from __future__ import annotations

import ast
import io
import random
import re
import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from storage.errors import ConfigurationError
from tasks.data.sections import PythonSources

Sample = tuple[str, str]  # text and class
CLASSES = ("code", "comment", "docstring", "message")
# Tests, generated tables, and what distributions add or leave out.
_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "encodings", "ensurepip"}
)
_FEWEST_WORDS, _MOST_CHARACTERS, _MOST_LINES = 3, 600, 3
_WORD = re.compile(r"[A-Za-z]{2,}")
_MOST_OF_ONE = 40  # texts of a class that one file may give, so that no large file is half of it


def library_files() -> dict[str, Path]:
    """The library's sources by their paths within it, in order."""
    root = Path(sysconfig.get_path("stdlib"))
    named = {path.relative_to(root): path for path in sorted(root.rglob("*.py"))}
    return {str(name): path for name, path in named.items() if not _LEFT_OUT & set(name.parts)}


def sample_sources(data: PythonSources) -> dict[str, list[Sample]]:
    """Texts with their classes by split.

    Each module or package of the library is of one split, drawn by ``data.seed``, and no text is in two. Classes are
    equally frequent as far as the texts go.

    Raises
    ------
    ConfigurationError
        This Python has too few sources of its library.
    """
    units: dict[str, list[Path]] = {}
    for name, path in library_files().items():
        units.setdefault(name.partition("/")[0].removesuffix(".py"), []).append(path)
    names = sorted(units)
    random.Random(data.seed).shuffle(names)
    wanted = {"test": data.test, "valid": data.valid, "train": data.train + data.calibration}
    found: dict[str, list[Sample]] = {}
    taken: set[str] = set()
    for split, count in wanted.items():
        found[split] = _fill(names, units, -(-count // len(CLASSES)), taken, data.seed)[:count]
        if len(found[split]) < count:
            raise ConfigurationError(
                f"The library of this Python ({sys.executable}) has {len(found[split])} texts for {split}, and "
                f"{count} are asked for.",
                hint="Use a complete CPython, ask for fewer in [data], or bring texts of your own.",
            )
    found["calibration"] = found["train"][: data.calibration]
    found["train"] = found["train"][data.calibration :]
    return found


def _fill(names: list[str], units: Mapping[str, list[Path]], each: int, taken: set[str], seed: int) -> list[Sample]:
    """Use up modules, from the end of `names`, until there are `each` texts of every class; these in an order by seed.

    What the last modules give beyond that is dropped, and no text is `taken` twice.
    """
    by_class: dict[str, list[Sample]] = {label: [] for label in CLASSES}
    while names and (short := [label for label, samples in by_class.items() if len(samples) < each]):
        for path in units[names.pop()]:
            for text, label in texts_of(path, short):
                if text not in taken and len(by_class[label]) < each:
                    taken.add(text)
                    by_class[label].append((text, label))
    mixed = [sample for samples in by_class.values() for sample in samples]
    random.Random(seed).shuffle(mixed)
    return mixed


def texts_of(path: Path, classes: Sequence[str] = CLASSES) -> Iterator[Sample]:
    """Texts of one file of some classes, white space as single blanks; none where Python cannot parse it."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        for label in classes:
            flat = (" ".join(text.split()) for text in _FINDERS[label](source, tree))
            good = (
                text for text in flat if len(text) <= _MOST_CHARACTERS and len(_WORD.findall(text)) >= _FEWEST_WORDS
            )
            yield from ((text, label) for text in islice(good, _MOST_OF_ONE))
    except (SyntaxError, ValueError, OSError, tokenize.TokenError):
        return  # a file for another Python, or in another encoding


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
    # Comments on lines that follow each other are one.
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
