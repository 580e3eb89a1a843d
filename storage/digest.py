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
    """Serialize a JSON value so that equal values have equal text; NaN and infinities are a `ValueError`."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(value: Mapping[str, object]) -> str:
    """SHA-256 (64 hexadecimal digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (64 hexadecimal digits) of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def source_digest(*makers: Callable[..., object] | type | ModuleType) -> str:
    """Digest of the makers' source without comments, formatting and docstrings, which change nothing that is made."""
    return digest_of({"sources": [_normalized_source(maker) for maker in makers]})


@lru_cache(maxsize=256)
def _normalized_source(maker: Callable[..., object] | type | ModuleType) -> str:
    tree = ast.parse(textwrap.dedent(inspect.getsource(maker)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node) is not None :]
    return ast.dump(tree, annotate_fields=False)
