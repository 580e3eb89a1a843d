"""Digests: one name for everything that decides an artifact's content."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType


def canonical_json(value: object) -> str:
    """Serialize a JSON value so that equal values have equal text; tuples count as lists.

    Raises
    ------
    ValueError
        For NaN or infinities, which JSON does not have.
    TypeError
        For a type that JSON does not have.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(value: Mapping[str, object]) -> str:
    """SHA-256 (64 hexadecimal digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (64 hexadecimal digits) of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def source_digest(*makers: Callable[..., object] | type | ModuleType) -> str:
    """Digest of the source of the functions, classes or modules that make an artifact.

    Comments, formatting and docstrings do not count: what is digested is the syntax tree without them, so that
    correcting a comment does not train a model again.
    """
    return digest_of({"sources": [_normalized_source(maker) for maker in makers]})


@lru_cache(maxsize=256)
def _normalized_source(maker: Callable[..., object] | type | ModuleType) -> str:
    tree = ast.parse(textwrap.dedent(inspect.getsource(maker)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return ast.dump(tree, annotate_fields=False)
