"""Digests of code: what decides an artifact includes the functions and constants that make it.

From a function, a class or a module every import within its own top-level package is followed, inside functions as
well; of the user's code those of its folder, too. The syntax tree counts, without docstrings and imports for type
checkers, so that correcting a comment trains no model again.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from storage.digest import digest_of
from tasks.user_code import importable

if TYPE_CHECKING:
    from torch import nn

    from tasks.workload.base import Kind

_OURS = ("flows", "tasks", "storage")
Root = Callable[..., object] | type | ModuleType | str


def code_digest(*roots: Root) -> str:
    """Digest of the code that `roots` (functions, classes, modules or modules' names) consist of and rely on."""
    found: dict[str, str] = {}
    for root in roots:
        if isinstance(root, str | ModuleType):
            _follow_module(root if isinstance(root, str) else root.__name__, found)
        else:
            tree = _deciding_tree(textwrap.dedent(inspect.getsource(root)))
            found[f"{root.__module__}:{root.__qualname__}"] = _digest(tree)
            for name in _imported(tree, root.__module__):
                _follow_module(name, found)
    return digest_of({"code": found})


def model_digest(model: nn.Module, spec: Kind, *makers: Callable[..., object]) -> str:
    """Digest of the code that a model consists of, and of the `makers` that build it and its inputs.

    The classes of the model's modules count; torch's own do not, for its version is part of every digest. Where `spec`
    names the user's own factory, the factory's module and what it imports of its package count as well.
    """
    names = {type(part).__module__ for part in model.modules()}
    if factory := getattr(spec, "factory", ""):
        names.add(factory.partition(":")[0])
    with importable(spec.folder):
        own = sorted(name for name in names if name.partition(".")[0] != "torch" and _path_of(name) is not None)
        return code_digest(*makers, *own)


def user_digest(folder: str, *references: str) -> str:
    """Digest of the user's code that ``module:callable`` references, looked for in `folder` first, rely on."""
    with importable(folder):
        return code_digest(*(reference.partition(":")[0] for reference in references))


def _follow_module(name: str, found: dict[str, str]) -> None:
    if name in found:
        return
    path = _path_of(name)
    normalized, imported = _read(name, path, path.stat().st_mtime_ns if path is not None else 0)
    found[name] = normalized
    for other in imported:
        _follow_module(other, found)


@cache
def _read(name: str, path: Path | None, modified_ns: int) -> tuple[str, tuple[str, ...]]:
    if path is None:  # compiled
        return "", ()
    tree = _deciding_tree(path.read_bytes())
    # Of an installed library the version counts, and the modules that a model's classes are defined in.
    is_library = "site-packages" in path.parts and name.partition(".")[0] != __package__
    return _digest(tree), () if is_library else tuple(sorted(set(_imported(tree, name))))


def _path_of(name: str) -> Path | None:
    # Not cached: another workload's folder may have a module of the same name.
    try:
        spec = find_spec(name)
    except (ModuleNotFoundError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _imported(tree: ast.AST, importer: str) -> Iterator[str]:
    """Modules that a syntax tree imports of the importer's own top-level package, or of the user's folder."""
    package = importer.partition(".")[0]
    path = _path_of(importer)
    root = (
        None if path is None or package in _OURS else path.parents[importer.count(".") + (path.name == "__init__.py")]
    )

    def counts(name: str) -> bool:
        top = name.partition(".")[0]
        if top == package or root is None or top in _OURS:
            return top == package
        found = _path_of(top)
        return found is not None and found.is_relative_to(root) and "site-packages" not in found.parts

    parent = importer if path is not None and path.name == "__init__.py" else importer.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if counts(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), parent)
            if counts(base):
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    yield inner if _path_of(inner) is not None else base


def _deciding_tree(source: str | bytes) -> ast.Module:
    """Parse code, and leave out docstrings, registries and what is for type checkers only.

    A registry's entries are no code of what is made by one of them: a new domain makes no other one's artifacts anew.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_idle(statement)]
    return tree


def _digest(tree: ast.Module) -> str:
    return hashlib.sha256(ast.dump(tree, annotate_fields=False).encode()).hexdigest()


def _is_idle(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.AnnAssign(value=ast.Call(func=ast.Name(id="Registry"))):
            return True
    return False
