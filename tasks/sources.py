"""Digests of code: what decides an artifact includes the functions and constants that make it.

Nothing lists these by hand. From a module every import within its own top-level package is followed, inside functions
as well; of the user's code those of its folder, too. From a function or a class only the definitions, constants and
imports of its module are followed that it uses. Imports for type checkers and for the annotations of functions decide
nothing and are left out. What is digested is the syntax tree without docstrings, so that correcting a comment trains no
model again.
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
            _follow_definition(root.__module__, root.__qualname__, tree, found)
    return digest_of({"code": found})


def model_digest(model: nn.Module, spec: Kind, *makers: Callable[..., object]) -> str:
    """Digest of the code that a model consists of, and of the `makers` that build it and its inputs.

    The classes of the model's modules count; torch's own do not, for its version is part of every digest. Where `spec`
    names the user's own factory, the factory's module and what it imports of its package count as well.
    """
    classes = {type(part) for part in model.modules()}
    ours = {part for part in classes if part.__module__.partition(".")[0] in _OURS}
    names = {part.__module__ for part in classes - ours}
    if factory := getattr(spec, "factory", ""):
        names.add(factory.partition(":")[0])
    with importable(spec.folder):
        others = (name for name in names if name.partition(".")[0] != "torch" and _path_of(name) is not None)
        return code_digest(*makers, *ours, *others)


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


def _follow_definition(module: str, name: str, tree: ast.AST, found: dict[str, str]) -> None:
    """Follow a function or a class: what it imports, and the definitions, constants and imports of its module."""
    found[f"{module}:{name}"] = _digest(tree)
    for imported in _imported(tree, module):
        _follow_module(imported, found)
    path = _path_of(module)
    known = _bound(path, path.stat().st_mtime_ns) if path is not None else {}
    for used in sorted(_used_names(tree) & known.keys()):
        if isinstance(known[used], ast.Import | ast.ImportFrom):
            for imported in _imported(known[used], module):
                _follow_module(imported, found)
        elif f"{module}:{used}" not in found:
            _follow_definition(module, used, known[used], found)


@cache
def _bound(path: Path, modified_ns: int) -> dict[str, ast.stmt]:
    """The statement that binds each name of a module; an import of several names is one statement for each."""
    bound: dict[str, ast.stmt] = {}
    for statement in _deciding_tree(path.read_bytes()).body:
        match statement:
            case ast.Import():
                for each in statement.names:
                    bound[(each.asname or each.name).partition(".")[0]] = ast.Import([each])
            case ast.ImportFrom():
                for each in statement.names:
                    bound[each.asname or each.name] = ast.ImportFrom(statement.module, [each], statement.level)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound[statement.name] = statement
            case ast.Assign() | ast.AnnAssign():
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                names = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
                bound |= {node.id: statement for node in names}
    return bound


def _used_names(tree: ast.AST) -> set[str]:
    """Names that code reads, without those of functions' annotations."""
    signatures = (node for node in ast.walk(tree) if isinstance(node, ast.arg | ast.FunctionDef | ast.AsyncFunctionDef))
    annotations = (node.annotation if isinstance(node, ast.arg) else node.returns for node in signatures)
    idle = {id(inner) for annotation in annotations if annotation is not None for inner in ast.walk(annotation)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in idle}


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

    is_package = path is not None and path.name == "__init__.py"
    parent = importer if is_package else importer.rpartition(".")[0]
    # A package, and the user's code, may import names for others.
    used = None if is_package or package not in _OURS or isinstance(tree, ast.ImportFrom) else _used_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if counts(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), parent)
            if counts(base):
                for alias in node.names:
                    if used is not None and (alias.asname or alias.name) not in used:
                        continue
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


def _digest(tree: ast.AST) -> str:
    return hashlib.sha256(ast.dump(tree, annotate_fields=False).encode()).hexdigest()


def _is_idle(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.AnnAssign(value=ast.Call(func=ast.Name(id="Registry" | "Domains"))):
            return True
    return False
