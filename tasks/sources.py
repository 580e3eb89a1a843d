"""Compute the digests of the functions and constants that are used to build an artifact.

Dependencies are found in the syntax tree. For a module, the digest covers every import within the module's top-level
package, including imports inside functions. For the user's code, the digest also covers imports from the workload
file's folder. For a function or class, the digest covers only the definitions, constants and imports that the function
or class uses. Function annotations and imports for type checkers are ignored. Docstrings and comments are left out, so
that correcting them does not cause a model to be trained again.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
import threading
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
# Python 3.11 counts the parser's depth per process. If garbage collection switches threads while two threads parse,
# `ast.parse` raises a `SystemError`.
_PARSING = threading.Lock()
Root = Callable[..., object] | type | ModuleType | str


def code_digest(*roots: Root) -> str:
    """Return the digest of `roots` (functions, classes, modules or names of modules), including all dependencies."""
    sources: dict[str, str] = {}
    for root in roots:
        if isinstance(root, str | ModuleType):
            _follow_module(root if isinstance(root, str) else root.__name__, sources)
        else:
            tree = _relevant_tree(textwrap.dedent(inspect.getsource(root)))
            _follow_definition(root.__module__, root.__qualname__, tree, sources)
    return digest_of({"code": sources})


def source_digest(path: Path) -> str:
    """Return the digest of one file's code, without its imports; comments and docstrings do not affect the digest."""
    return _digest(_relevant_tree(path.read_bytes()))


def model_digest(model: nn.Module, spec: Kind, *makers: Callable[..., object]) -> str:
    """Return the digest of a model's code, and of the `makers` that build the model and its inputs.

    The digest covers the classes of the model's modules. Torch's classes are omitted, because every digest includes
    torch's version. If `spec` names a factory, the digest also covers the factory's module, including imports from the
    same package.
    """
    classes = {type(part) for part in model.modules()}
    own = {part for part in classes if part.__module__.partition(".")[0] in _OURS}
    names = {part.__module__ for part in classes - own}
    if factory := getattr(spec, "factory", ""):
        names.add(factory.partition(":")[0])
    with importable(spec.folder):
        further = (name for name in names if name.partition(".")[0] != "torch" and _path_of(name) is not None)
        return code_digest(*makers, *own, *further)


def user_digest(folder: str, *references: str) -> str:
    """Return the digest of the user's code behind ``module:callable`` references; `folder` is searched first."""
    with importable(folder):
        return code_digest(*(reference.partition(":")[0] for reference in references))


def _follow_module(name: str, sources: dict[str, str]) -> None:
    if name in sources:
        return
    path = _path_of(name)
    normalized, imported = _read(name, path, path.stat().st_mtime_ns if path is not None else 0)
    sources[name] = normalized
    for dependency in imported:
        _follow_module(dependency, sources)


def _follow_definition(module: str, name: str, tree: ast.AST, sources: dict[str, str]) -> None:
    """Add the code of a function or class, and follow the definitions, constants and imports that this code uses."""
    sources[f"{module}:{name}"] = _digest(tree)
    for imported in _imported(tree, module):
        _follow_module(imported, sources)
    path = _path_of(module)
    bindings = _bindings(path, path.stat().st_mtime_ns) if path is not None else {}
    for used in sorted(_used_names(tree) & bindings.keys()):
        if isinstance(bindings[used], ast.Import | ast.ImportFrom):
            for imported in _imported(bindings[used], module):
                _follow_module(imported, sources)
        elif f"{module}:{used}" not in sources:
            _follow_definition(module, used, bindings[used], sources)


@cache
def _bindings(path: Path, modified_ns: int) -> dict[str, ast.stmt]:
    """Map each name defined in a module to the statement that defines it; split imports of several names."""
    bindings: dict[str, ast.stmt] = {}
    for statement in _relevant_tree(path.read_bytes()).body:
        match statement:
            case ast.Import():
                for alias in statement.names:
                    bindings[(alias.asname or alias.name).partition(".")[0]] = ast.Import([alias])
            case ast.ImportFrom():
                for alias in statement.names:
                    bindings[alias.asname or alias.name] = ast.ImportFrom(statement.module, [alias], statement.level)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bindings[statement.name] = statement
            case ast.Assign() | ast.AnnAssign():
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                names = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
                bindings |= {node.id: statement for node in names}
    return bindings


def _used_names(tree: ast.AST) -> set[str]:
    """Return the names that the code reads, except names in function annotations."""
    signatures = (node for node in ast.walk(tree) if isinstance(node, ast.arg | ast.FunctionDef | ast.AsyncFunctionDef))
    annotations = (node.annotation if isinstance(node, ast.arg) else node.returns for node in signatures)
    ignored = {id(inner) for annotation in annotations if annotation is not None for inner in ast.walk(annotation)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in ignored}


@cache
def _read(name: str, path: Path | None, modified_ns: int) -> tuple[str, tuple[str, ...]]:
    if path is None:  # compiled
        return "", ()
    tree = _relevant_tree(path.read_bytes())
    # Include the code of a library's module, but do not follow the module's imports.
    is_library = "site-packages" in path.parts and name.partition(".")[0] != __package__
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

    is_package = path is not None and path.name == "__init__.py"
    parent = importer if is_package else importer.rpartition(".")[0]
    # Follow all imports in ``__init__.py`` files and the user's code, because other modules may use the imported names.
    used = None if is_package or package not in _OURS or isinstance(tree, ast.ImportFrom) else _used_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if is_followed(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), parent)
            if is_followed(base):
                for alias in node.names:
                    if used is not None and (alias.asname or alias.name) not in used:
                        continue
                    inner = f"{base}.{alias.name}"
                    yield inner if _path_of(inner) is not None else base


def _relevant_tree(source: str | bytes) -> ast.Module:
    """Parse code, and then remove docstrings, ``if TYPE_CHECKING`` blocks and registries (`Registry`, `Domains`).

    Registries are left out so that a new entry, such as a new domain, does not invalidate other artifacts.
    """
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
