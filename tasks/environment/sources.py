"""Compute the digests of the code that builds an artifact.

A module's digest covers every import from its own top-level package or, for the user's code, from the workload file's
folder. Docstrings, comments, imports for type checkers and registries do not affect what is built.
"""

from __future__ import annotations

import ast
import hashlib
import threading
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import TYPE_CHECKING

from storage.digest import digest_of
from tasks.environment.user_code import importable

if TYPE_CHECKING:
    from torch import nn

    from tasks.workload.base import Kind

_OURS = ("flows", "tasks", "storage")
# Python 3.11 counts the parser's depth per process. If garbage collection switches threads while two threads parse,
# `ast.parse` raises a `SystemError`.
_PARSING = threading.Lock()
Root = Callable[..., object] | type | str


def code_digest(*roots: Root) -> str:
    """Return the digest of modules, including their dependencies; a function or class stands for its module."""
    sources: dict[str, str] = {}
    for root in roots:
        _follow(root if isinstance(root, str) else root.__module__, sources)
    return digest_of({"code": sources})


def source_digest(path: Path) -> str:
    """Return the digest of one file's code, without its imports; comments and docstrings do not affect the digest."""
    return _digest(_relevant_tree(path.read_bytes()))


def model_digest(model: nn.Module, spec: Kind, *makers: Callable[..., object]) -> str:
    """Return the digest of the classes in a model, its factory, and the `makers` of the model and its inputs."""
    names = {type(part).__module__ for part in model.modules()}
    if factory := getattr(spec, "factory", ""):
        names.add(factory.partition(":")[0])
    with importable(spec.folder):
        return code_digest(*makers, *(name for name in names if name.partition(".")[0] != "torch" and _path_of(name)))


def user_digest(folder: str, *references: str) -> str:
    """Return the digest of the user's code behind ``module:callable`` references; `folder` is searched first."""
    with importable(folder):
        return code_digest(*(reference.partition(":")[0] for reference in references))


def _follow(name: str, sources: dict[str, str]) -> None:
    if name in sources:
        return
    path = _path_of(name)
    sources[name], imported = _read(name, path, path.stat().st_mtime_ns if path is not None else 0)
    for dependency in imported:
        _follow(dependency, sources)


@cache
def _read(name: str, path: Path | None, modified_ns: int) -> tuple[str, tuple[str, ...]]:
    if path is None:  # compiled
        return "", ()
    tree = _relevant_tree(path.read_bytes())
    # Include the code of a library's module, but do not follow the module's imports.
    is_library = "site-packages" in path.parts and name.partition(".")[0] not in _OURS
    return _digest(tree), () if is_library else tuple(sorted(set(_imported(tree, name))))


def _path_of(name: str) -> Path | None:
    # Do not cache the result, because another workload's folder may have a module with the same name.
    try:
        spec = find_spec(name)
    except (ModuleNotFoundError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _imported(tree: ast.AST, importer: str) -> Iterator[str]:
    """Yield imported modules that belong to the importer's own top-level package or to the user's folder."""
    package = importer.partition(".")[0]
    path = _path_of(importer)
    root = (
        None if path is None or package in _OURS else path.parents[importer.count(".") + (path.name == "__init__.py")]
    )

    def is_followed(name: str) -> bool:
        top = name.partition(".")[0]
        if top == package or root is None or top in _OURS:
            return top == package
        location = _path_of(top)
        return location is not None and location.is_relative_to(root) and "site-packages" not in location.parts

    parent = importer if path is not None and path.name == "__init__.py" else importer.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if is_followed(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), parent)
            if is_followed(base):
                inner = (f"{base}.{alias.name}" for alias in node.names)
                yield from (name if _path_of(name) is not None else base for name in inner)


def _relevant_tree(source: str | bytes) -> ast.Module:
    """Parse code, and then remove docstrings, ``if TYPE_CHECKING`` blocks and registries."""
    with _PARSING:
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_ignored(statement)]
    return tree


def _digest(tree: ast.AST) -> str:
    return hashlib.sha256(ast.dump(tree, annotate_fields=False).encode()).hexdigest()


def _is_ignored(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.AnnAssign(value=ast.Call(func=ast.Name(id="Registry" | "Domains"))):
            return True
    return False
