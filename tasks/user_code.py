"""Code of the user's own: found beside the workload file first, called, and shown in its own words where it fails."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module, invalidate_caches
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, cast

from storage.errors import ConfigurationError, NightquantError
from storage.transient import is_transient

if TYPE_CHECKING:
    from torch import nn

    from tasks.workload.base import FactorySpec

_OURS = ("flows", "tasks", "storage")
_ROOT = Path(__file__).parents[1]
_LIBRARIES = (*(str(_ROOT / name) for name in _OURS), sysconfig.get_path("stdlib"))


def call_factory(spec: FactorySpec) -> nn.Module:
    """Make the model that ``model.factory`` gives for ``model.arguments``.

    Raises
    ------
    ConfigurationError
        The module or the callable does not exist, the call fails, or does not return a ``torch.nn.Module``.
    """
    model = call("model.factory", spec.factory, spec.folder, **spec.arguments)
    if not isinstance(model, resolve_name("torch.nn:Module")):
        raise ConfigurationError(
            f'model.factory "{spec.factory}" returned {type(model).__name__}, not a torch.nn.Module.',
            hint="It must return the float model.",
        )
    return cast("nn.Module", model)


def call(key: str, reference: str, folder: str, /, *args: object, **kwargs: object) -> object:
    """Import ``module:callable``, which the workload's `key` names, and call it.

    Modules are looked for in `folder`, the workload file's, then in the current folder, then among installed packages.

    Raises
    ------
    ConfigurationError
        The module or the callable does not exist, or the call fails: with the user's own lines of the traceback.
    """
    with opened(key, reference, folder) as function:
        return function(*args, **kwargs)


@contextmanager
def opened(key: str, reference: str, folder: str) -> Iterator[Callable[..., object]]:
    """Import ``module:callable`` for several calls, as `call` does for one."""
    with importable(folder):
        function = _load(key, reference, folder)

        def called(*args: object, **kwargs: object) -> object:
            given = f" with {kwargs}" if kwargs and not args else ""
            with in_its_own_words(f'{key} "{reference}" failed when called{given}', f"Fix it, or what {key} is given."):
                return function(*args, **kwargs)

        yield called


@contextmanager
def in_its_own_words(what: str, hint: str) -> Iterator[None]:
    """Turn an error of the user's code into one message: `what` failed, the error, and the user's own lines of it.

    Raises
    ------
    ConfigurationError
        The block raised anything but one of this project's errors.
    """
    try:
        yield
    except NightquantError:
        raise
    except Exception as error:
        hint = _hint(error, hint)
        raise ConfigurationError(
            f"{what}: {type(error).__name__}: {str(error).rstrip('.')}.\n{_own_lines(error)}",
            hint=hint,
            transient=is_transient(error),
        ) from error


@contextmanager
def importable(folder: str) -> Iterator[None]:
    """Put a workload file's folder first on the path, then the current one; forget like-named modules of others."""
    there = "" in sys.path
    wanted = dict.fromkeys(([folder] if folder else []) + ([] if there else [str(Path.cwd())]))
    added = [each for each in wanted if each not in sys.path]
    if folder:
        _forget_others(Path(folder))
    sys.path[:0] = added
    invalidate_caches()
    try:
        yield
    finally:
        for each in added:
            sys.path.remove(each)


def _load(key: str, reference: str, folder: str) -> Callable[..., object]:
    module_name, _, attribute = reference.partition(":")
    what = f'{key} "{reference}"'
    try:
        with _on_cpu():
            found = getattr(import_module(module_name), attribute, None)
    except ModuleNotFoundError as error:
        searched = " and ".join(dict.fromkeys(filter(None, (folder, str(Path.cwd())))))
        hint = f"Install it, or put it beside the workload file (searched: {searched})."
        raise ConfigurationError(f'{what}: there is no module "{error.name}".', hint=_hint(error, hint)) from error
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).rstrip('.')}.\n{_own_lines(error)}"
        hint = _hint(error, "Fix the module.")
        raise ConfigurationError(f"{what}: importing {module_name} failed: {why}", hint=hint) from error
    if not callable(found):
        what_is = "does not exist" if found is None else "is not callable"
        raise ConfigurationError(
            f"{what}: {module_name}.{attribute} {what_is}.", hint=_hint(module_name, "Name a function or a class.")
        )
    function: Callable[..., object] = found
    return function


def _on_cpu() -> AbstractContextManager[object]:
    """Keep tensors that a module makes when it is imported from being blank, because a blank model imported it."""
    torch = sys.modules.get("torch")
    return torch.device("cpu") if torch else nullcontext()


def _forget_others(folder: Path) -> None:
    """Drop modules of another workload's folder: what lies on no path now was put on it by `importable`."""
    names = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()} if folder.is_dir() else ()
    for name in set(names) - set(_OURS):  # ours are imported from where they are, whatever lies there
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None:
            continue
        root = Path(file).parents[1 if Path(file).name == "__init__.py" else 0]
        if root != folder and str(root) not in (*sys.path, str(Path.cwd())):
            for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
                del sys.modules[loaded]


def is_users_file(name: str) -> bool:
    """Return whether a file of source code belongs neither to nightquant nor to a library."""
    return not name.startswith(("<", *_LIBRARIES)) and "site-packages" not in Path(name).parts


def _own_lines(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users_file(frame.filename)]
    return "".join(traceback.format_list(frames))


def _hint(missing: str | Exception, otherwise: str) -> str:
    """Say that a module of the user's project is hidden by a package of ours, or `otherwise`."""
    module = missing if isinstance(missing, str) else isinstance(missing, ImportError) and missing.name
    package = (module or "").partition(".")[0]
    if package not in _OURS:
        return otherwise
    return (
        f'nightquant has a package "{package}" itself, which hides the one of that name in your project: rename yours, '
        "or install it under another name."
    )
